//! Chat templates: Jinja, with the whitespace rules that models' templates are written for.

use super::calendar;
use minijinja::{Environment, Error, ErrorKind, Value, context, syntax::SyntaxConfig};
use serde::Serialize;
use std::io::{self, Write};

use super::error::TextError;

const NAME: &str = "chat";

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    begin: String,
    end: String,
}

impl ChatTemplate {
    /// `begin` and `end` are the texts of the model's begin and end tokens, which templates may use.
    pub(crate) fn new(source: String, begin: String, end: String) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true)
            .build()?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python_json);
        environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            calendar::format(calendar::now(), &format)
                .map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_template_owned(NAME, without_generation_marks(&source))?;
        Ok(Self { environment, begin, end })
    }

    /// The text of a chat, ending where the assistant is to go on.
    ///
    /// # Errors
    /// The template is wrong or refuses the chat.
    pub fn format(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        let template = self.environment.get_template(NAME)?;
        let turn = |message: &ChatMessage| {
            Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())])
        };
        let turns: Value = messages.iter().map(turn).collect();
        let values = context! {
            messages => turns,
            add_generation_prompt => true,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
        };
        Ok(template.render(values)?)
    }
}

/// The template with `{% generation %}` blocks, which mark what an assistant wrote for training, as blocks that do nothing: they have a scope of their
/// own, and keep their whitespace marks.
fn without_generation_marks(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let (before, tag) = rest.split_at(begin);
        plain.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[2..end];
        match inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => plain.push_str(&tag[..end + 2].replacen("generation", "with", 1)),
            "endgeneration" => plain.push_str(&tag[..end + 2].replacen("endgeneration", "endwith", 1)),
            _ => plain.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    plain.push_str(rest);
    plain
}

/// JSON as `json.dumps` of Python writes it, which is what templates were trained with: a blank behind each comma and colon, and no escape of HTML.
fn python_json(value: &Value) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let failed = |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Blanks)).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

struct Blanks;

impl serde_json::ser::Formatter for Blanks {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_leave_no_lines_and_the_chat_ends_open() {
        let source = "{% for message in messages %}\n<{{ message.role }}>{{ message.content }}\n{% endfor %}\n\
                      {% if add_generation_prompt %}\n<assistant>{% endif %}";
        let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
        let say =
            |role: &str, content: &str| ChatMessage { role: role.to_owned(), content: content.to_owned() };
        let text = template.format(&[say("user", "hi"), say("assistant", "yes?")]).unwrap();
        assert_eq!(text, "<user>hi\n<assistant>yes?\n<assistant>");
    }

    /// Templates are written for Jinja in Python: methods of its texts and lists, `tojson`, and loops that are left.
    #[test]
    fn what_templates_use_of_python_is_there() {
        let chat = [ChatMessage { role: "user".to_owned(), content: " <think>a</think>b ".to_owned() }];
        for (source, expected) in [
            ("{{ messages[0].content.startswith(' <th') }}", "True"),
            ("{{ messages[0].content.split('</think>')[-1].lstrip().rstrip() }}", "b"),
            ("{{ messages[0].content.strip().replace('a', 'x').upper() }}", "<THINK>X</THINK>B"),
            ("{% for key, value in messages[0].items() %}{{ key }}{% break %}{% endfor %}", "role"),
            ("{{ messages[0].get('name', 'none') }}", "none"),
            ("{{ {'a': [1, true], 'b': '<ü>'} | tojson }}", "{\"a\": [1, true], \"b\": \"<ü>\"}"),
        ] {
            let template = ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap();
            assert_eq!(template.format(&chat).unwrap(), expected, "{source}");
        }
    }

    /// As `transformers` has them: blocks around what the assistant wrote change nothing, and the date is today's.
    #[test]
    fn generation_blocks_and_dates_are_what_transformers_makes_of_them() {
        let chat = [ChatMessage { role: "assistant".to_owned(), content: "yes".to_owned() }];
        let text = |source: &str| {
            ChatTemplate::new(source.to_owned(), String::new(), String::new()).unwrap().format(&chat)
        };
        for (source, expected) in [
            (
                "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}",
                "<yes>",
            ),
            ("< {%- generation -%} {{ messages[0].content }} {%- endgeneration -%} >", "<yes>"),
            ("{% set n = namespace(x=1) %}{%generation%}{% set n.x = 2 %}{%endgeneration%}{{ n.x }}", "2"),
            ("{{ '{% generation' }}", "{% generation"),
            ("{{ strftime_now is defined }} {{ 'x' }}{% generation", "no template"),
        ] {
            let found = ChatTemplate::new(source.to_owned(), String::new(), String::new());
            match found {
                Ok(template) => assert_eq!(template.format(&chat).unwrap(), expected, "{source}"),
                Err(_) => assert_eq!(expected, "no template", "{source}"),
            }
        }
        let today = text("{{ strftime_now('%Y-%m-%d') }}").unwrap();
        assert!(today.len() == 10 && today.as_bytes()[4] == b'-' && &today[..2] == "20", "{today}");
        let error = text("{{ strftime_now('%Q') }}").unwrap_err().to_string();
        assert!(error.contains("%Q"), "{error}");
    }

    #[test]
    fn a_template_may_refuse_a_chat() {
        let template =
            ChatTemplate::new("{{ raise_exception('no') }}".to_owned(), String::new(), String::new())
                .unwrap();
        assert!(template.format(&[]).unwrap_err().to_string().contains("no"));
        assert!(ChatTemplate::new("{% for %}".to_owned(), String::new(), String::new()).is_err());
    }
}
