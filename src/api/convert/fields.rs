//! Takes a JSON object apart under the rules every command shares: no unknown and no duplicate field, no null, integers
//! only where integers are asked for, text within its length and without control characters. The first rule broken is
//! named, with the field's path (`args.ttl_ms`).

use std::ops::RangeInclusive;

use super::json::{Json, Text};

/// A body broke a rule. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Path of the field, e.g. `args.ttl_ms`; `None`: the body as a whole.
    pub field: Option<String>,
    /// The item of a BATCH, from 0.
    pub index: Option<usize>,
    /// The rule, and what came instead.
    pub detail: String,
}

impl Invalid {
    /// The body as a whole is wrong.
    pub fn body(detail: impl Into<String>) -> Self {
        Self { field: None, index: None, detail: detail.into() }
    }

    /// `field` is wrong: `rule` completes the sentence that starts with its name.
    pub fn field(field: impl Into<String>, rule: impl AsRef<str>) -> Self {
        let field = field.into();
        let detail = format!("{field} {}", rule.as_ref());
        Self { field: Some(field), index: None, detail }
    }

    /// The same, as item `index` of a BATCH.
    #[must_use]
    pub fn in_item(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }
}

/// The fields of one object. Each is known and there once.
pub struct Fields<'a> {
    path: &'static str,
    entries: &'a [(Text<'a>, Json<'a>)],
}

impl<'a> Fields<'a> {
    /// Opens `json`, which stands at `path` (empty for a body), as an object with no other fields than `known`.
    pub fn open(json: &'a Json<'a>, path: &'static str, known: &[&str]) -> Result<Self, Invalid> {
        let Json::Object(entries) = json else {
            let got = json.describe();
            return Err(match path {
                "" => Invalid::body(format!("the body must be a JSON object; got {got}")),
                _ => Invalid::field(path, format!("must be a JSON object; got {got}")),
            });
        };
        let fields = Self { path, entries };
        let mut seen = 0_u64;
        for (Text(name), _) in entries {
            let Some(place) = known.iter().position(|known| known == name) else {
                return Err(fields.unknown(name, known));
            };
            if seen & (1 << place) != 0 {
                return Err(Invalid::field(fields.full(name), "is given more than once"));
            }
            seen |= 1 << place;
        }
        Ok(fields)
    }

    fn unknown(&self, name: &str, known: &[&str]) -> Invalid {
        const SHOWN_CHARS_MAX: usize = 64;
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        Invalid::field(self.full(&shown), format!("is not a field here; known: {}", known.join(", ")))
    }

    /// The path of field `name`.
    pub fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value, if it is there.
    pub fn get(&self, name: &str) -> Option<&'a Json<'a>> {
        self.entries.iter().find(|(Text(entry), _)| entry == name).map(|(_, json)| json)
    }

    /// The field's value; `rule` says what is missing if it is not there.
    pub fn require(&self, name: &str, rule: impl FnOnce() -> String) -> Result<&'a Json<'a>, Invalid> {
        self.get(name).ok_or_else(|| Invalid::field(self.full(name), format!("is missing: it {}", rule())))
    }

    /// Text of `bytes` bytes without control characters.
    pub fn text(&self, name: &str, bytes: RangeInclusive<usize>) -> Result<&'a str, Invalid> {
        self.require(name, || text_rule(&bytes)).and_then(|json| text(json, || self.full(name), &bytes))
    }

    /// The same, or nothing.
    pub fn text_if_given(&self, name: &str, bytes: RangeInclusive<usize>) -> Result<Option<&'a str>, Invalid> {
        self.get(name).map(|json| text(json, || self.full(name), &bytes)).transpose()
    }

    /// An integer in `range`.
    pub fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<u64, Invalid> {
        let json = self.require(name, || integer_rule(&range))?;
        integer(json, || self.full(name), &range)
    }

    /// The same, or nothing.
    pub fn integer_if_given(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Invalid> {
        self.get(name).map(|json| integer(json, || self.full(name), &range)).transpose()
    }

    /// A boolean, or nothing.
    pub fn flag_if_given(&self, name: &str) -> Result<Option<bool>, Invalid> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(*value)),
            Some(other) => {
                Err(Invalid::field(self.full(name), format!("must be true or false; got {}", other.describe())))
            }
        }
    }
}

/// Checks one text. `field` makes its path when a rule is broken.
pub fn text<'a>(
    json: &'a Json<'a>,
    field: impl Fn() -> String,
    bytes: &RangeInclusive<usize>,
) -> Result<&'a str, Invalid> {
    let Json::Text(value) = json else {
        return Err(Invalid::field(field(), format!("{}; got {}", text_rule(bytes), json.describe())));
    };
    if !bytes.contains(&value.len()) {
        return Err(Invalid::field(field(), format!("{}; got {} bytes", text_rule(bytes), value.len())));
    }
    if let Some(at) = value.find(char::is_control) {
        let rule = text_rule(bytes);
        return Err(Invalid::field(field(), format!("{rule}; got a control character at byte {at}")));
    }
    Ok(value)
}

fn integer(json: &Json<'_>, field: impl Fn() -> String, range: &RangeInclusive<u64>) -> Result<u64, Invalid> {
    let got = match json {
        Json::Integer(value) => match u64::try_from(*value) {
            Ok(value) if range.contains(&value) => return Ok(value),
            _ => value.to_string(),
        },
        other => other.describe().to_owned(),
    };
    Err(Invalid::field(field(), format!("{}; got {got}", integer_rule(range))))
}

fn text_rule(bytes: &RangeInclusive<usize>) -> String {
    format!("must be a string of {}..={} bytes of UTF-8 without control characters", bytes.start(), bytes.end())
}

fn integer_rule(range: &RangeInclusive<u64>) -> String {
    format!("must be an integer in {}..={}", range.start(), range.end())
}
