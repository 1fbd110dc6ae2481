//! How a child is to be started, as checked from a request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farfork_container::RootSpec;
use farfork_fabric::{Address, SeedKey};
use farfork_fork::pager::Strategy;
use farfork_wire::Token;
use tonic::Code;

use crate::api::v1;
use crate::failure::Failure;

/// A seed, where it is, and what opens it.
#[derive(Debug, Clone)]
pub(crate) struct SeedAccess {
    /// Which seed, and its token.
    pub(crate) key: Arc<SeedKey>,
    /// Its owner's fabric.
    pub(crate) owner: Address,
}

/// How a child is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartOptions {
    /// Its root.
    pub(crate) root: RootSpec,
    /// Paths of the node that it sees, each with its path inside.
    pub(crate) binds: Vec<(PathBuf, PathBuf)>,
    /// Whether it waits before its first instruction.
    pub(crate) paused: bool,
    /// Whether its standard input is a pipe.
    pub(crate) attached: bool,
    /// How long it may run.
    pub(crate) timeout: Option<Duration>,
    /// How its memory comes.
    pub(crate) strategy: Strategy,
}

impl TryFrom<v1::SeedAccess> for SeedAccess {
    type Error = Failure;

    fn try_from(access: v1::SeedAccess) -> Result<Self, Failure> {
        let refuse =
            |cause: &dyn std::fmt::Display| Failure::new(Code::InvalidArgument, format!("seed {}", access.seed), cause);
        let seed = access.seed.parse().map_err(|error| refuse(&error))?;
        let owner = access.fabric_address.parse().map(Address::Tcp).map_err(|error| refuse(&error))?;
        let token =
            <[u8; 16]>::try_from(access.token.as_slice()).map_err(|_| refuse(&"its token has a wrong length"))?;
        Ok(Self { key: Arc::new(SeedKey { seed, token: Token::from_bytes(token) }), owner })
    }
}

impl TryFrom<v1::ChildOptions> for StartOptions {
    type Error = Failure;

    fn try_from(options: v1::ChildOptions) -> Result<Self, Failure> {
        let v1::ChildOptions { binds, shared, paused, attached, timeout_ms, strategy } = options;
        let mut checked: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut root = RootSpec::Overlay;
        for path in shared {
            match absolute(path)? {
                path if path == Path::new("/") => root = RootSpec::Shared,
                path => checked.push((path.clone(), path)),
            }
        }
        for v1::Bind { from, to } in binds {
            checked.push((absolute(from)?, absolute(to)?));
        }
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let strategy = strategy_of(&strategy)?;
        Ok(Self { root, binds: checked, paused, attached, timeout, strategy })
    }
}

fn strategy_of(text: &str) -> Result<Strategy, Failure> {
    if text.is_empty() {
        return Ok(Strategy::default());
    }
    text.parse().map_err(|error| Failure::new(Code::InvalidArgument, format!("strategy {text}"), error))
}

fn absolute(path: String) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        return Ok(path);
    }
    let object = format!("path {}", path.display());
    Err(Failure::new(Code::InvalidArgument, object, "it must begin with `/`: it is a path of the child's node"))
}

#[cfg(test)]
mod tests {
    use farfork_fork::pager::{Paging, Strategy};

    use super::{RootSpec, StartOptions};
    use crate::api::v1::{Bind, ChildOptions};

    #[test]
    fn sharing_the_root_is_no_bind() {
        let bind = Bind { from: "/data".to_owned(), to: "/mnt".to_owned() };
        let shared = vec!["/".to_owned(), "/srv".to_owned()];
        let options = ChildOptions { shared, binds: vec![bind], ..ChildOptions::default() };
        let options = StartOptions::try_from(options).unwrap();
        assert_eq!(options.root, RootSpec::Shared);
        assert_eq!(options.binds, [("/srv".into(), "/srv".into()), ("/data".into(), "/mnt".into())]);
        assert_eq!(options.timeout, None);
    }

    #[test]
    fn a_strategy_is_told_by_name() {
        let options = |strategy: &str| {
            StartOptions::try_from(ChildOptions { strategy: strategy.to_owned(), ..ChildOptions::default() })
        };
        assert_eq!(options("").unwrap().strategy, Strategy::default());
        assert_eq!(options("cow").unwrap().strategy.paging, Paging::Cow);
        let refused = options("slow").unwrap_err().to_string();
        assert!(refused.contains("strategy slow") && refused.contains("prefetch"), "{refused}");
    }

    #[test]
    fn a_relative_path_is_refused() {
        let options = ChildOptions { shared: vec!["data".to_owned()], ..ChildOptions::default() };
        assert!(StartOptions::try_from(options).is_err());
    }
}
