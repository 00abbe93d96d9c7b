//! The holder's secret. Its bytes are shown by [`Token::expose`] and by serialization alone, never by `Debug`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The secret that proves a grant is the caller's: 1..=256 bytes, chosen by the client, exact bytes.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// 128 random bits in hex.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
    pub fn random() -> Result<Token, getrandom::Error> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The secret itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(secret: String) -> Token {
        Token(secret)
    }
}

impl From<&str> for Token {
    fn from(secret: &str) -> Token {
        Token(secret.to_owned())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
