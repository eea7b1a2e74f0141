//! Numbers as hex digits of their bits, so that what is read back is what was written, whatever it is.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Numbers, one after the other.
pub(crate) mod bits {
    use super::{Deserialize, Deserializer, Error, Serializer};

    pub(crate) fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = values.iter().map(|value| format!("{:016x}", value.to_bits())).collect();
        serializer.serialize_str(&text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        let bytes = super::bytes_of(&text).ok_or_else(|| D::Error::custom("expected hex digits"))?;
        if bytes.len() % 8 != 0 {
            return Err(D::Error::custom("expected 16 hex digits a number"));
        }
        let value = |chunk: &[u8]| chunk.iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        Ok(bytes.chunks(8).map(|chunk| f64::from_bits(value(chunk))).collect())
    }
}

/// A number that may be absent.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Error, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&format!("{:016x}", value.to_bits())),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let parsed = |text: String| u64::from_str_radix(&text, 16).map(f64::from_bits);
        text.map(parsed).transpose().map_err(D::Error::custom)
    }
}

/// Hex digits of `bytes`.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes with these hex digits.
pub(crate) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Kept {
        #[serde(with = "bits")]
        all: Vec<f64>,
        #[serde(with = "option")]
        one: Option<f64>,
    }

    #[test]
    fn every_number_comes_back_bit_by_bit() {
        let all = vec![0.1, -0.0, f64::MIN_POSITIVE / 3.0, f64::INFINITY, f64::NAN, 1e300];
        for one in all.iter().copied().map(Some).chain([None]) {
            let text = serde_json::to_string(&Kept { all: all.clone(), one }).unwrap();
            let read: Kept = serde_json::from_str(&text).unwrap();
            assert!(all.iter().zip(&read.all).all(|(a, b)| a.to_bits() == b.to_bits()), "{text}");
            assert_eq!(read.one.map(f64::to_bits), one.map(f64::to_bits), "{text}");
        }
        assert!(serde_json::from_str::<Kept>(r#"{"all": "0123", "one": null}"#).is_err());
        assert!(bytes_of("0g").is_none() && bytes_of("012").is_none());
        assert_eq!(bytes_of(&of_bytes(&[0, 171, 255])), Some(vec![0, 171, 255]));
    }
}
