//! `tenure://host:port,host:port`: where the nodes are.
//!
//! `amaquet://` is an alias. `tenures://` is reserved for TLS and refused until it exists: a connection that looks
//! encrypted and is not would be worse than none.

use std::fmt;
use std::str::FromStr;

use crate::wire::PORT;

/// Most endpoints in one URI.
pub const ENDPOINTS_MAX: usize = 16;

/// Longest name there is, bytes. Far beyond it no request could be made of it.
const HOST_BYTES_MAX: usize = 253;

/// Where one node listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The client port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The nodes of one cluster: 1..=16 endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    endpoints: Vec<Endpoint>,
}

impl Uri {
    /// In the order given.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        write!(f, "tenure://{}", all.join(","))
    }
}

/// What is wrong with a URI, and how to write it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// No `tenure://`.
    #[error("{0:?} is no tenure URI: write tenure://host:13378, or tenure://a:13378,b:13378 for several nodes")]
    Scheme(String),
    /// `tenures://`.
    #[error("tenures:// (TLS) is not supported yet, TLS comes later: use tenure:// on a network you trust")]
    Tls,
    /// One of the endpoints.
    #[error("{endpoint:?} is no endpoint: {rule}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// More than [`ENDPOINTS_MAX`].
    #[error("{0} endpoints: at most {ENDPOINTS_MAX}")]
    TooMany(usize),
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let scheme_error = || UriError::Scheme(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(scheme_error)?;
        match scheme.to_ascii_lowercase().as_str() {
            "tenure" | "amaquet" => {}
            "tenures" => return Err(UriError::Tls),
            _ => return Err(scheme_error()),
        }
        let list = rest.strip_suffix('/').unwrap_or(rest);
        let endpoints = list.split(',').map(endpoint).collect::<Result<Vec<_>, _>>()?;
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(UriError::TooMany(endpoints.len()));
        }
        Ok(Uri { endpoints })
    }
}

impl FromStr for Endpoint {
    type Err = UriError;

    /// As one stands in a URI: `host`, `host:port`, `[::1]:port`.
    fn from_str(text: &str) -> Result<Endpoint, UriError> {
        endpoint(text)
    }
}

impl From<Endpoint> for Uri {
    fn from(endpoint: Endpoint) -> Uri {
        Uri { endpoints: vec![endpoint] }
    }
}

fn endpoint(text: &str) -> Result<Endpoint, UriError> {
    let wrong = |rule| UriError::Endpoint { endpoint: text.to_owned(), rule };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| wrong("the bracket of an IPv6 address is open"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong("between the brackets stands no IPv6 address"));
            }
            let port = match port {
                "" => None,
                _ => Some(port.strip_prefix(':').ok_or_else(|| wrong("after the bracket comes :port"))?),
            };
            (host, port)
        }
        None if text.matches(':').count() > 1 => return Err(wrong("an IPv6 address needs brackets: [::1]:13378")),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(wrong("the host is missing"));
    }
    if host.len() > HOST_BYTES_MAX {
        return Err(wrong("a host has at most 253 bytes"));
    }
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if !host.chars().all(legal) {
        return Err(wrong("a host is a name or an address, without path, user or spaces"));
    }
    let port = match port {
        None => PORT,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port != 0).ok_or_else(|| wrong("a port is 1..=65535"))?
        }
        Some(_) => return Err(wrong("a port is a number, 1..=65535")),
    };
    Ok(Endpoint { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn all(text: &str) -> String {
        text.parse::<Uri>().map_or_else(|error| format!("error: {error}"), |uri| uri.to_string())
    }

    #[test]
    fn several_nodes_default_port_alias_and_ipv6() {
        assert_eq!(all("tenure://a:1,b"), "tenure://a:1,b:13378");
        assert_eq!(all("amaquet://127.0.0.1:13378/"), "tenure://127.0.0.1:13378");
        assert_eq!(all("TENURE://[::1],[fe80::1]:7"), "tenure://[::1]:13378,[fe80::1]:7");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("127.0.0.1:13378", "write tenure://host:13378"),
            ("http://a", "write tenure://host:13378"),
            ("tenures://a", "TLS comes later"),
            ("tenure://", "host is missing"),
            ("tenure://a,,b", "host is missing"),
            ("tenure://a:0", "1..=65535"),
            ("tenure://a:65536", "1..=65535"),
            ("tenure://a:", "1..=65535"),
            ("tenure://a:+1", "number"),
            ("tenure://::1", "brackets"),
            ("tenure://[::1", "open"),
            ("tenure://[a]:1", "IPv6"),
            ("tenure://[::1]1", ":port"),
            ("tenure://u@a", "without path, user"),
            ("tenure://a/b", "without path, user"),
            ("tenure://a b", "without path, user"),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = |bytes| format!("tenure://{}", "a".repeat(bytes)).parse::<Uri>();
        assert!(long(253).is_ok() && long(254).unwrap_err().to_string().contains("at most 253"));
        let many = format!("tenure://{}", ["a"; 17].join(","));
        assert_eq!(many.parse::<Uri>().unwrap_err(), UriError::TooMany(17));
    }
}
