//! Parameters with their meanings, written once: the comment on a parameter is its documentation, its line in
//! `kvlab list policies --params ID`, and the default stands beside it.

/// The meaning of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamDoc {
    /// Its key in a scenario.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// Joins the lines of a comment.
pub(crate) const fn first_line(lines: &'static [&'static str]) -> &'static str {
    match lines {
        [line, ..] => line,
        [] => "",
    }
}

/// Declares the `Params` of a policy: `name: type = default`, each with a comment of one line.
///
/// It makes the struct, its `Default`, its serde form (absent keys take their defaults, unknown ones are refused) and
/// `Params::DOCS`. With `owned;` in front the struct is no `Copy`.
macro_rules! params {
    (owned; $( $(#[doc = $doc:literal])+ $name:ident : $type:ty = $default:expr ),* $(,)?) => {
        $crate::policy::doc::params! { @ [Clone] $( $(#[doc = $doc])+ $name : $type = $default ),* }
    };
    (@ [$($derive:ident),*] $( $(#[doc = $doc:literal])+ $name:ident : $type:ty = $default:expr ),*) => {
        /// Parameters.
        #[derive($($derive),*, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Params {
            $( $(#[doc = $doc])+ pub $name: $type, )*
        }

        impl Default for Params {
            fn default() -> Self {
                Self { $( $name: $default, )* }
            }
        }

        impl Params {
            /// What each parameter means.
            pub const DOCS: &'static [$crate::policy::ParamDoc] = &[
                $( $crate::policy::ParamDoc {
                    name: stringify!($name),
                    meaning: $crate::policy::doc::first_line(&[$($doc),+]).trim_ascii(),
                }, )*
            ];
        }
    };
    ($( $(#[doc = $doc:literal])+ $name:ident : $type:ty = $default:expr ),* $(,)?) => {
        $crate::policy::doc::params! { @ [Clone, Copy] $( $(#[doc = $doc])+ $name : $type = $default ),* }
    };
}
pub(crate) use params;

/// Default parameters as they would stand in a scenario.
pub(crate) fn defaults<P: serde::Serialize + Default>() -> serde_json::Value {
    as_json(&P::default())
}

/// Parameters as they would stand in a scenario.
pub(crate) fn as_json<P: serde::Serialize>(params: &P) -> serde_json::Value {
    serde_json::to_value(params).unwrap_or_default()
}
