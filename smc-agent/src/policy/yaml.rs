//! YAML as a tree of nodes that know their places.
//!
//! Types that derive `Deserialize` stop at the first error; a policy is to be told all of its errors at once, so
//! everything is read into this tree first and judged by hand.

use super::diagnostic::At;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Location, MergeKeyPolicy, Spanned};
use std::fmt;

/// A node and its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) value: Value,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    /// Plain and quoted scalars, as text; booleans and numbers as they were written.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// What the node is, in words for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Scalar(_) => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            _ => None,
        }
    }
}

struct Raw(Kind);

enum Kind {
    Null,
    /// Anything whose text is to be taken from the source.
    Plain,
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor).map(Raw)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind::Plain)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = access.next_element()? {
            list.push(item);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = access.next_entry()? {
            map.push(entry);
        }
        Ok(Kind::Map(map))
    }
}

/// Reads one YAML document. The error has a place and a message.
pub(super) fn parse(text: &str) -> Result<Node, (At, String)> {
    // The crate's bounds are against documents of strangers; a policy is as long as it is, and its author is trusted with
    // this host. Nesting and aliases stay bounded: those can blow up a small text.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
            max_documents: 1,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        emit_comments: false,
        with_snippet: false,
    };
    let raw: Spanned<Raw> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let at = error.location().map_or(At::START, place);
        let message = error.without_snippet().to_string();
        // The place is told by the diagnostic already.
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        (at, message)
    })?;
    Ok(node(raw, text))
}

fn place(location: Location) -> At {
    let cut = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    At {
        line: cut(location.line()).max(1),
        column: cut(location.column()).max(1),
        length: cut(location.span().len()).max(1),
    }
}

fn node(raw: Spanned<Raw>, text: &str) -> Node {
    let location = raw.referenced;
    let mut at = place(location);
    let source = || {
        let span = raw.defined.span();
        let first = usize::try_from(span.byte_offset()?).ok()?;
        let length = usize::try_from(span.byte_len()?).ok()?;
        text.get(first..first + length)
    };
    let value = match raw.value.0 {
        Kind::Null => Value::Null,
        Kind::Plain => Value::Scalar(source().unwrap_or_default().trim().to_owned()),
        Kind::Text(value) => Value::Scalar(value),
        Kind::List(list) => Value::List(list.into_iter().map(|item| node(item, text)).collect()),
        Kind::Map(map) => {
            let map: Vec<(Node, Node)> =
                map.into_iter().map(|(key, value)| (node(key, text), node(value, text))).collect();
            Value::Map(map)
        }
    };
    match &value {
        // A block has no end that a mark could show; its first key does.
        Value::Map(map) => {
            if let Some((key, _)) = map.first() {
                at.length =
                    if key.at.line == at.line { (key.at.column - at.column) + key.at.length } else { 1 };
            }
        }
        Value::List(_) | Value::Null => at.length = 1,
        Value::Scalar(_) => {}
    }
    Node { at, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_know_their_places_and_numbers_their_text() {
        let tree = parse("a: 007\n\"b\": [x, 8000-8099, 1e3, true, ~]\na: {c: ü, d: 'ä b'}\n").unwrap();
        insta::assert_debug_snapshot!(tree);
    }
}
