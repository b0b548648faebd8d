//! What a request asks for, in the part of its address behind the question mark.

use jiff::Timestamp;

use super::publish::Wanted;
use crate::trace::HistoryQuery;

/// Reads the query of `GET /v1/events`: `history=N`, `since=TIME` (RFC 3339), `follow=true|false`. Without any, events
/// from now on are asked for. On failure, what is wrong with it.
pub(super) fn wanted(query: &str) -> Result<Wanted, String> {
    let mut history: Option<HistoryQuery> = None;
    let mut follow = true;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| format!("{name}: {value:?} is not well encoded"))?;
        match name {
            "history" => {
                let last = value.parse().map_err(|_| format!("history: {value:?} is no number of events"))?;
                history.get_or_insert_default().last = Some(last);
            }
            "since" => {
                let since: Timestamp = value.parse().map_err(|_| {
                    format!("since: {value:?} is no time such as 2026-01-02T03:04:05Z (RFC 3339)")
                })?;
                history.get_or_insert_default().since = Some(since);
            }
            "follow" => {
                follow = value.parse().map_err(|_| format!("follow: {value:?} is neither true nor false"))?;
            }
            _ => return Err(format!("{name:?} is not known: history, since and follow are")),
        }
    }
    Ok(Wanted { history, follow })
}

/// Undoes percent encoding (RFC 3986, section 2.1). A plus sign is one: times have them.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(last: Option<usize>, since: Option<&str>) -> HistoryQuery {
        HistoryQuery { last, since: since.map(|since| since.parse().unwrap()) }
    }

    #[test]
    fn queries_are_read() {
        let now = Wanted { history: None, follow: true };
        assert_eq!(wanted(""), Ok(now));
        assert_eq!(wanted("follow=false&"), Ok(Wanted { follow: false, ..now }));
        assert_eq!(wanted("history=7"), Ok(Wanted { history: Some(query(Some(7), None)), ..now }));
        let since = "2026-01-02T03:04:05+01:00";
        for text in ["since=2026-01-02T03:04:05+01:00", "since=2026-01-02T03%3A04%3a05%2B01:00"] {
            assert_eq!(wanted(text), Ok(Wanted { history: Some(query(None, Some(since))), ..now }), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, wrong) in [
            ("history=-1", "history: \"-1\" is no number"),
            ("since=yesterday", "since: \"yesterday\" is no time"),
            ("follow=maybe", "follow: \"maybe\" is neither"),
            ("x=1", "\"x\" is not known"),
            ("since=%4", "since: \"%4\" is not well encoded"),
            ("since=%zz", "not well encoded"),
        ] {
            let error = wanted(text).unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
