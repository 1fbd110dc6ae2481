//! The identity of a member: the one name in its certificate, as a URI in the subject alternative names.
//!
//! ```text
//! farfork://CLUSTER/ROLE/NAME       farfork://blue/node/n1      farfork://blue/read-only/grafana
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use farfork_wire::NodeName;

use crate::authority::{CLIENT_VALID_MAX, NODE_VALID};

const URI_SCHEME: &str = "farfork://";

/// The role of a member, which determines the requests that it may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A node: everything.
    Node,
    /// A user of the cluster: all requests of users.
    Client,
    /// A reader: requests that change nothing.
    ReadOnly,
}

impl Role {
    /// Longest lifetime of a certificate for this role, and time for which a revocation is kept.
    pub fn validity_max(self) -> Duration {
        match self {
            Self::Node => NODE_VALID,
            Self::Client | Self::ReadOnly => CLIENT_VALID_MAX,
        }
    }

    /// How a revoked member with this role gets a new certificate.
    pub fn readmission_step(self) -> &'static str {
        match self {
            Self::Node => "let it join with a new token",
            Self::Client | Self::ReadOnly => "give it a new certificate with `farfork cluster issue`",
        }
    }

    /// The name in a URI and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Client => "client",
            Self::ReadOnly => "read-only",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a role; use node, client or read-only")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let all = [Self::Node, Self::Client, Self::ReadOnly];
        all.into_iter().find(|role| role.as_str() == text).ok_or_else(|| RoleError(text.to_owned()))
    }
}

/// The identity of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Name of the cluster, in the form of a node's name.
    pub cluster: NodeName,
    /// Role of the member.
    pub role: Role,
    /// Name of the member, unique among those with its role.
    pub name: NodeName,
}

impl Identity {
    /// The identity of a node.
    pub fn for_node(cluster: &NodeName, name: &NodeName) -> Self {
        Self { cluster: cluster.clone(), role: Role::Node, name: name.clone() }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{URI_SCHEME}{}/{}/{}", self.cluster, self.role, self.name)
    }
}

/// The text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an identity; the form is `farfork://CLUSTER/node/NAME`")]
pub struct IdentityError(String);

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let parse = || {
            let mut parts = text.strip_prefix(URI_SCHEME)?.split('/');
            let cluster = NodeName::new(parts.next()?).ok()?;
            let role = parts.next()?.parse().ok()?;
            let name = NodeName::new(parts.next()?).ok()?;
            parts.next().is_none().then_some(Self { cluster, role, name })
        };
        parse().ok_or_else(|| IdentityError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_identity_parses_from_its_text() {
        for text in ["farfork://blue/node/n1", "farfork://blue/client/ci", "farfork://b/read-only/grafana"] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        for text in
            ["", "farfork://", "farfork://b/node", "farfork://b/king/n1", "farfork://b/node/n1/", "http://b/node/n1"]
        {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".{0,80}") {
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }
    }
}
