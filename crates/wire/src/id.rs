//! Names of nodes, seeds and children. The id of a seed or a child contains the name of the node that owns it, so that no
//! catalog is needed to find the object.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest node name, in bytes: the limit of a label of a host name (RFC 1035). A node name is also used as a host name.
pub const NODE_NAME_BYTES_MAX: usize = 63;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A node name has a character or length that a host name may not have.
    #[error("`{0}` is not a node name: use 1 to 63 of a-z, 0-9 and `-`, beginning with a letter, not ending with `-`")]
    NodeName(String),
    /// The text does not have the form of a seed's or child's id.
    #[error("`{text}` is not a {kind} id; the form is `{example}`")]
    InvalidForm {
        /// The text.
        text: String,
        /// `seed` or `child`.
        kind: &'static str,
        /// A well-formed id.
        example: &'static str,
    },
}

/// Name of a node, unique in its cluster: 1 to 63 of `a-z`, `0-9`, `-`, beginning with a letter.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Validates a name.
    ///
    /// # Errors
    /// [`IdError::NodeName`] if the text does not have the form of a [`NodeName`].
    pub fn new(text: &str) -> Result<Self, IdError> {
        let bytes = text.as_bytes();
        let well_formed = bytes.len() <= NODE_NAME_BYTES_MAX
            && bytes.first().is_some_and(u8::is_ascii_lowercase)
            && bytes.last() != Some(&b'-')
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
        if well_formed { Ok(Self(text.to_owned())) } else { Err(IdError::NodeName(text.to_owned())) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeName {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::new(&text)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0
    }
}

impl FromStr for NodeName {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::new(text)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! owned_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $letter:literal, $example:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name {
            node: NodeName,
            number: u64,
        }

        impl $name {
            /// Builds the id of an object of `node`. `number` is random, so that the id is unique on the node even across
            /// restarts.
            pub fn new(node: NodeName, number: u64) -> Self {
                Self { node, number }
            }

            /// The node that owns the object.
            pub fn node(&self) -> &NodeName {
                &self.node
            }

            /// The number of the object on its node.
            pub fn number(&self) -> u64 {
                self.number
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}.", $letter, "{:016x}"), self.node, self.number)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let parse = || {
                    let (node, rest) = text.split_once('.')?;
                    let digits = rest.strip_prefix($letter)?;
                    let canonical = digits.len() == 16
                        && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                    if !canonical {
                        return None;
                    }
                    let number = u64::from_str_radix(digits, 16).ok()?;
                    Some(Self::new(NodeName::new(node).ok()?, number))
                };
                parse().ok_or_else(|| IdError::InvalidForm { text: text.to_owned(), kind: $kind, example: $example })
            }
        }
    };
}

owned_id!(
    /// The id of a seed, as `NODE.s0123456789abcdef`.
    SeedId, "seed", "s", "n1.s00f3a96c5d217e84"
);
owned_id!(
    /// The id of a child, as `NODE.c0123456789abcdef`.
    ChildId, "child", "c", "n2.c00f3a96c5d217e84"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_parse_from_their_text(name in "[a-z][a-z0-9-]{0,20}[a-z0-9]", number: u64) {
            let id = SeedId::new(NodeName::new(&name).unwrap(), number);
            prop_assert_eq!(id.to_string().parse::<SeedId>().unwrap(), id);
        }

        #[test]
        fn parsing_any_text_does_not_panic(text in ".{0,80}") {
            let _ = text.parse::<SeedId>();
            let _ = text.parse::<ChildId>();
            let _ = text.parse::<NodeName>();
        }
    }

    #[test]
    fn a_child_id_is_not_a_seed_id() {
        assert!("n1.c00f3a96c5d217e84".parse::<SeedId>().is_err());
        assert!("n1.s00F3a96c5d217e84".parse::<SeedId>().is_err());
    }
}
