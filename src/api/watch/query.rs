//! What a watch is asked for: `?key=a&key=b`, or `?prefix=p`, with `renewed`, `list` and `after`. Strict: what is unknown,
//! given twice or out of range is refused by name. `Last-Event-ID`, which a browser sends when it comes back, counts
//! before `after`, which then stands in the URL still and is older.

use std::collections::BTreeSet;

use axum::http::{HeaderMap, HeaderName};

use super::KEYS_MAX;
use crate::api::problem::{Code, Problem};
use crate::edge::watch::{Begin, Keys, Selection};
use crate::keyspace::Key;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const KEY_BYTES_MAX: usize = 1024;
const KNOWN: &str = "key, prefix, renewed, list, after";

/// A watch's beginning.
#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    /// What it is about.
    pub selection: Selection,
    /// Where it begins.
    pub begin: Begin,
}

/// As it is given, each at most once but `key`.
#[derive(Default)]
struct Given {
    keys: BTreeSet<Key>,
    prefix: Option<Key>,
    renewed: Option<bool>,
    list: Option<bool>,
    after: Option<String>,
}

impl Query {
    /// Of a request to a node of `cluster`.
    pub fn of(query: &str, headers: &HeaderMap, cluster: &str) -> Result<Self, Problem> {
        let mut given = Given::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name).unwrap_or_else(|| name.to_owned());
            let value = decoded(value).ok_or_else(|| wrong(&name, "is no percent-encoded UTF-8"))?;
            given.take(&name, value)?;
        }
        let begin = given.begin(headers, cluster)?;
        let Given { keys, prefix, renewed, list, .. } = given;
        let keys = match prefix {
            Some(_) if !keys.is_empty() => return Err(wrong("prefix", "cannot be given together with key")),
            Some(prefix) => Keys::Prefix(prefix),
            None if keys.is_empty() => Keys::default(),
            None => Keys::These(keys),
        };
        let selection = Selection { keys, renewed: renewed.unwrap_or(false), list: list.unwrap_or(true) };
        Ok(Self { selection, begin })
    }
}

impl Given {
    fn take(&mut self, name: &str, value: String) -> Result<(), Problem> {
        let is_again = match name {
            "key" => {
                self.keys.insert(text(name, &value, 1)?);
                if self.keys.len() > KEYS_MAX {
                    return Err(wrong(name, &format!("may be given {KEYS_MAX} times at most: watch a prefix")));
                }
                false
            }
            "prefix" => self.prefix.replace(text(name, &value, 0)?).is_some(),
            "renewed" => self.renewed.replace(flag(name, &value)?).is_some(),
            "list" => self.list.replace(flag(name, &value)?).is_some(),
            "after" => self.after.replace(value).is_some(),
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(wrong(&shown, &format!("is not a query parameter here; known: {KNOWN}")));
            }
        };
        if is_again { Err(wrong(name, "is given more than once")) } else { Ok(()) }
    }

    fn begin(&self, headers: &HeaderMap, cluster: &str) -> Result<Begin, Problem> {
        const NAME: &str = "Last-Event-ID";
        let mut values = headers.get_all(LAST_EVENT_ID).iter();
        let (name, id) = match (values.next(), &self.after) {
            (Some(_), _) if values.next().is_some() => return Err(wrong(NAME, "is given more than once")),
            (Some(value), after) => match (value.to_str(), after) {
                (Err(_), _) => return Err(wrong(NAME, "is not of the form cluster-index.n.k")),
                // Nothing was read yet.
                (Ok(""), None) => return Ok(Begin::Now),
                (Ok(""), Some(after)) => ("after", after.as_str()),
                (Ok(value), _) => (NAME, value),
            },
            (None, Some(after)) => ("after", after.as_str()),
            (None, None) => return Ok(Begin::Now),
        };
        Begin::after(id, cluster).map_err(|_| wrong(name, "is not of the form cluster-index.n.k: take an event's id"))
    }
}

fn wrong(name: &str, rule: &str) -> Problem {
    Problem { field: Some(name.to_owned()), ..Problem::new(Code::InvalidArgument, format!("{name} {rule}")) }
}

fn text(name: &str, value: &str, bytes_min: usize) -> Result<Key, Problem> {
    if !(bytes_min..=KEY_BYTES_MAX).contains(&value.len()) || value.contains(char::is_control) {
        let rule = format!("must be {bytes_min}..={KEY_BYTES_MAX} bytes of UTF-8 without control characters");
        return Err(wrong(name, &rule));
    }
    Ok(Key::from(value))
}

fn flag(name: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong(name, "must be true or false")),
    }
}

/// A form's encoding undone; `None`: there is no such text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn query(text: &str) -> Result<Query, Problem> {
        Query::of(text, &HeaderMap::new(), "c")
    }

    fn with_header(text: &str, ids: &[&str]) -> Result<Begin, Problem> {
        let headers = ids.iter().map(|id| (LAST_EVENT_ID, id.parse().unwrap())).collect();
        Query::of(text, &headers, "c").map(|query| query.begin)
    }

    #[test]
    fn what_is_asked_for() {
        let all = query("").unwrap();
        assert_eq!(all.selection, Selection { keys: Keys::default(), renewed: false, list: true });
        assert_eq!(all.begin, Begin::Now);
        let some = query("key=a%2Bb+c&key=%C3%A4&key=%C3%A4&renewed=true&list=false&").unwrap().selection;
        let keys = BTreeSet::from(["a+b c".into(), "ä".into()]);
        assert_eq!(some, Selection { keys: Keys::These(keys), renewed: true, list: false });
        assert_eq!(query("prefix=").unwrap(), all, "an empty prefix is all keys");
    }

    #[test]
    fn where_it_begins() {
        let after = |index| Begin::After(format!("{index}.0.0").parse().unwrap());
        assert_eq!(query("after=c-7.0.0").unwrap().begin, after(7));
        assert_eq!(with_header("after=c-7.0.0", &["c-8.0.0"]).unwrap(), after(8), "a browser that comes back");
        assert_eq!(with_header("", &["c-8.0"]).unwrap(), Begin::After("8.0".parse().unwrap()));
        assert_eq!(with_header("after=c-7.0.0", &[""]).unwrap(), after(7));
        assert_eq!(with_header("", &[""]).unwrap(), Begin::Now);
        assert_eq!(with_header("", &["other-8.0.0"]).unwrap(), Begin::Elsewhere);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many: String = (0..=KEYS_MAX).map(|n| format!("key={n}&")).collect();
        let long = format!("key={}", "x".repeat(KEY_BYTES_MAX + 1));
        let cases = [
            ("keys=a", "keys"),
            ("key=", "key"),
            ("key", "key"),
            ("key=%00", "key"),
            ("key=%f", "key"),
            ("key=%fg", "key"),
            ("key=%ff", "key"),
            (&*long, "key"),
            (&*many, "key"),
            ("key=a&prefix=b", "prefix"),
            ("prefix=a&prefix=b", "prefix"),
            ("list=1", "list"),
            ("list=true&list=true", "list"),
            ("renewed", "renewed"),
            ("after=", "after"),
            ("after=7.0.0", "after"),
            ("after=c-7", "after"),
            ("after=c-7.0.0&after=c-7.0.0", "after"),
        ];
        for (text, field) in cases {
            let problem = query(text).unwrap_err();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::InvalidArgument, Some(field)), "{text}");
        }
        for ids in [&["c"][..], &["c-1.0", "c-1.0"], &["\u{e4}-1.0"]] {
            assert_eq!(with_header("", ids).unwrap_err().field.as_deref(), Some("Last-Event-ID"), "{ids:?}");
        }
    }
}
