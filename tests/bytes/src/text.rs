//! Mutants of text: tokens are found without a parser, so that text which is broken already is mutated further.
//!
//! Numbers become huge, negative and fractional, strings very long or full of what must not be there, fields come twice,
//! values are nested deep. See `mutate` for the rest.

use crate::mutate::{Chooser, Form};

/// Numbers as text.
const NUMBERS: [&str; 18] = [
    "0",
    "-1",
    "-0",
    "+1",
    "007",
    "1.5",
    "1e3",
    "1e400",
    "9007199254740991",
    "9007199254740992",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "340282366920938463463374607431768211456",
    "0x10",
    "65535",
    "65536",
    "NaN",
];
/// What a string must not hold, or hardly ever holds.
const TEXTS: [&str; 14] = [
    "",
    "\0",
    "\n",
    "\r\n",
    "\u{7f}",
    "\u{85}",
    "\\u0000",
    "\\ud800",
    "\\n",
    "\u{1f511}",
    "\u{202e}",
    "%00",
    "\"",
    "é",
];
/// Values of JSON.
const VALUES: [&str; 10] = ["null", "true", "false", "{}", "[]", "\"\"", "[[]]", "{\"\":0}", "\"lease\"", "-"];
/// What parts text.
const SIGNS: &[u8] = b"{}[]\",:=&?/.;\r\n \0#%@'-";

/// One mutation.
pub fn step(choose: &mut Chooser<'_>, form: Form, bytes: &mut Vec<u8>) {
    let most = if form == Form::Json { 10 } else { 6 };
    match choose.below(most) {
        0 => {
            let new = choose.of(&NUMBERS);
            replace(choose, bytes, numbers, new.as_bytes());
        }
        1 => {
            let new = choose.of(&TEXTS);
            let at = choose.below(bytes.len() + 1);
            bytes.splice(at..at, new.bytes());
        }
        2 => {
            let sign = choose.of(SIGNS);
            let at = choose.below(bytes.len() + 1);
            if choose.0.percent(50) { bytes.insert(at, sign) } else { replace(choose, bytes, signs, &[sign]) }
        }
        3 => double_line(choose, bytes),
        4 => lengthen(choose, bytes),
        5 => swap_words(choose, bytes),
        6 => {
            let new = choose.of(&VALUES);
            replace_value(choose, bytes, new.as_bytes());
        }
        7 => double_field(choose, bytes),
        8 => nest(choose, bytes),
        _ => {
            let new = format!("\"{}\"", choose.of(&TEXTS));
            replace_value(choose, bytes, new.as_bytes());
        }
    }
}

type Spans = Vec<std::ops::Range<usize>>;

/// Runs of bytes that are of a kind.
fn runs(bytes: &[u8], of_kind: impl Fn(u8) -> bool) -> Spans {
    let mut spans = Spans::new();
    for (at, _) in bytes.iter().enumerate().filter(|(_, byte)| of_kind(**byte)) {
        match spans.last_mut() {
            Some(last) if last.end == at => last.end = at + 1,
            _ => spans.push(at..at + 1),
        }
    }
    spans
}

fn numbers(bytes: &[u8]) -> Spans {
    runs(bytes, |byte| byte.is_ascii_digit())
}

fn signs(bytes: &[u8]) -> Spans {
    runs(bytes, |byte| SIGNS.contains(&byte))
}

fn words(bytes: &[u8]) -> Spans {
    runs(bytes, |byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A colon, and what stands behind it up to what ends it: values that end far away are none.
fn value(choose: &mut Chooser<'_>, bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    const LENGTH_MAX: usize = 4_096;
    let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b'\n');
    let colons = runs(bytes, |byte| byte == b':');
    let start = colons.get(choose.below(colons.len()))?.end;
    let length = bytes[start..].iter().take(LENGTH_MAX).position(ends)?;
    Some(start..start + length)
}

fn replace_value(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>, new: &[u8]) {
    if let Some(span) = value(choose, bytes) {
        bytes.splice(span, new.iter().copied());
    }
}

fn replace(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>, find: fn(&[u8]) -> Spans, new: &[u8]) {
    let found = find(bytes);
    if !found.is_empty() {
        let span = found[choose.below(found.len())].clone();
        bytes.splice(span, new.iter().copied());
    }
}

fn double_line(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let lines: Spans = runs(bytes, |byte| byte != b'\n' && byte != 0);
    if lines.is_empty() {
        return;
    }
    let line = lines[choose.below(lines.len())].clone();
    let mut copy = bytes[line.clone()].to_vec();
    copy.push(b'\n');
    bytes.splice(line.start..line.start, copy);
}

/// A word of the text becomes very long, now and then longer than any limit.
fn lengthen(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let found = words(bytes);
    if found.is_empty() {
        return;
    }
    let at = found[choose.below(found.len())].start;
    let length = if choose.0.percent(3) { 1_100_000 } else { choose.of(&[64, 255, 256, 1_023, 1_024, 1_025, 5_000]) };
    bytes.splice(at..at, std::iter::repeat_n(b'a', length));
}

/// Two words change places.
fn swap_words(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let found = words(bytes);
    if found.len() < 2 {
        return;
    }
    let (one, two) = (choose.below(found.len()), choose.below(found.len()));
    let (first, second) = (found[one.min(two)].clone(), found[one.max(two)].clone());
    if first.end > second.start {
        return;
    }
    let (a, b) = (bytes[first.clone()].to_vec(), bytes[second.clone()].to_vec());
    bytes.splice(second, a);
    bytes.splice(first, b);
}

/// A field of an object comes twice, perhaps with another value.
fn double_field(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let Some(value) = value(choose, bytes) else { return };
    let start =
        bytes[..value.start].iter().rposition(|byte| matches!(byte, b'{' | b',' | b'\n')).map_or(0, |at| at + 1);
    let mut copy = bytes[start..value.end].to_vec();
    copy.push(b',');
    bytes.splice(start..start, copy);
}

/// A value is put into many arrays or objects.
fn nest(choose: &mut Chooser<'_>, bytes: &mut Vec<u8>) {
    let Some(value) = value(choose, bytes) else { return };
    let depth = choose.of(&[1, 10, 126, 127, 128, 129, 1_000, 100_000]);
    let (open, close): (&[u8], u8) = choose.of(&[(b"[" as &[u8], b']'), (b"{\"a\":", b'}')]);
    bytes.splice(value.end..value.end, std::iter::repeat_n(close, depth));
    bytes.splice(value.start..value.start, open.repeat(depth));
}
