//! Options for starting a child, validated from a request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farfork_api::byte_size;
use farfork_api::failure::Failure;
use farfork_api::v1;
use farfork_container::{
    CPU_MILLICORES_MIN, ContainerLimits, ContainerSpec, MEMORY_BYTES_MIN, NetworkSpec, RootProtection, RootSpec,
    UsersSpec,
};
use farfork_fabric::{Address, SeedKey};
use farfork_fork::pager::PagingStrategy;
use farfork_wire::Token;
use tonic::Code;

use crate::network::{EgressPolicy, NetworkMode, PortMapping};

/// Default limit of processes and threads of an untrusted child. Nearly all programs have fewer, and a machine sustains
/// a dozen such children at their limit (the kernel's limit is 32,768 on small machines).
pub(crate) const UNTRUSTED_TASKS_MAX: u64 = 1024;

/// A seed with its location and its token.
#[derive(Debug, Clone)]
pub(crate) struct SeedAccess {
    /// The seed and its token.
    pub(crate) key: Arc<SeedKey>,
    /// Address of its owner's fabric.
    pub(crate) owner: Address,
    /// Whether other seeds own a part of its memory.
    pub(crate) inherits: bool,
}

/// The options of a child's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StartOptions {
    /// Kind of the child's root file system.
    pub(crate) root: RootSpec,
    /// The directory of the node that is its root, instead of the seed's.
    pub(crate) root_directory: Option<PathBuf>,
    /// Paths of the node that are bound into the child's root: path on the node, path in the child.
    pub(crate) binds: Vec<(PathBuf, PathBuf)>,
    /// Whether the child waits before its first instruction.
    pub(crate) paused: bool,
    /// Whether its standard input is a pipe to which a client can attach.
    pub(crate) attached: bool,
    /// Its time limit.
    pub(crate) timeout: Option<Duration>,
    /// Its paging strategy.
    pub(crate) strategy: PagingStrategy,
    /// Its resource limits.
    pub(crate) limits: ContainerLimits,
    /// Its restrictions.
    pub(crate) protection: RootProtection,
    /// Its users and groups.
    pub(crate) users: UsersSpec,
    /// Its network.
    pub(crate) network: NetworkMode,
    /// Ports of the node that are forwarded to it.
    pub(crate) publish: Vec<PortMapping>,
    /// The destinations that it can reach from its own network.
    pub(crate) egress: EgressPolicy,
    /// Whether files that were changed in place are used as they are.
    pub(crate) allow_changed_files: bool,
    /// Whether it has a channel to its program.
    pub(crate) channel: bool,
}

impl StartOptions {
    /// Returns the kind of container that such a child needs.
    pub(crate) fn container(&self) -> ContainerSpec {
        let limited = self.limits != ContainerLimits::default();
        let network = match self.users {
            UsersSpec::Host => self.network.to_container_spec(),
            // The container's init stays in the network in which it is created. The child can see that network through
            // init.
            UsersSpec::Private => NetworkSpec::Private,
        };
        ContainerSpec { root: self.root, network, users: self.users, limited }
    }
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
        let key = Arc::new(SeedKey { seed, token: Token::from_bytes(token) });
        Ok(Self { key, owner, inherits: access.inherits })
    }
}

impl TryFrom<v1::ChildOptions> for StartOptions {
    type Error = Failure;

    fn try_from(options: v1::ChildOptions) -> Result<Self, Failure> {
        let limits = parse_limits(&options)?;
        let users = parse_users(&options)?;
        let (network, publish, egress) = parse_network(&options)?;
        let v1::ChildOptions { allow_changed_files, channel, owner_timeout_ms, .. } = options;
        let root_directory = if options.root.is_empty() { None } else { Some(require_absolute(options.root)?) };
        let v1::ChildOptions { binds, shared, paused, attached, timeout_ms, strategy, untrusted, read_only, .. } =
            options;
        let protection = RootProtection { untrusted, read_only };
        let mut checked: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut root = RootSpec::Overlay;
        for path in shared {
            match require_absolute(path)? {
                path if path == Path::new("/") => root = RootSpec::Shared,
                path => checked.push((path.clone(), path)),
            }
        }
        for v1::Bind { from, to } in binds {
            checked.push((require_absolute(from)?, require_absolute(to)?));
        }
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let strategy = parse_strategy(&strategy, owner_timeout_ms)?;
        Ok(Self {
            root,
            root_directory,
            binds: checked,
            paused,
            attached,
            timeout,
            strategy,
            limits,
            protection,
            users,
            network,
            publish,
            egress,
            allow_changed_files,
            channel,
        })
    }
}

fn parse_limits(options: &v1::ChildOptions) -> Result<ContainerLimits, Failure> {
    let refuse = |object: &str, cause: String| Err(Failure::new(Code::InvalidArgument, object, cause));
    let if_positive = |amount: u64| (amount > 0).then_some(amount);
    let limits = ContainerLimits {
        memory_bytes_max: if_positive(options.memory_bytes_max),
        cpu_millicores_max: if_positive(options.cpu_millicores_max),
        tasks_max: if_positive(options.processes_max).or(options.untrusted.then_some(UNTRUSTED_TASKS_MAX)),
    };
    if limits.memory_bytes_max.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
        return refuse(
            "memory limit",
            format!("no child can run in less than {}", byte_size::format_bytes(MEMORY_BYTES_MIN)),
        );
    }
    if limits.cpu_millicores_max.is_some_and(|millicores| millicores < CPU_MILLICORES_MIN) {
        let least = CPU_MILLICORES_MIN as f64 / 1000.0;
        return refuse("processor limit", format!("the kernel gives no less than {least} of a processor"));
    }
    Ok(limits)
}

fn parse_users(options: &v1::ChildOptions) -> Result<UsersSpec, Failure> {
    let refuse = |cause: &str, next: &str| {
        Err(Failure::new(Code::InvalidArgument, "a user namespace", cause).with_next_step(next))
    };
    match options {
        v1::ChildOptions { user_namespace: false, .. } => Ok(UsersSpec::Host),
        v1::ChildOptions { untrusted: false, .. } => {
            refuse("only untrusted children can have their own", "fork it with --untrusted, too")
        }
        v1::ChildOptions { shared, .. } if shared.iter().any(|path| Path::new(path) == Path::new("/")) => refuse(
            "the node's own root cannot be used with the ids of a user namespace",
            "share directories below it, or drop --user-namespace",
        ),
        _ => Ok(UsersSpec::Private),
    }
}

fn parse_network(options: &v1::ChildOptions) -> Result<(NetworkMode, Vec<PortMapping>, EgressPolicy), Failure> {
    let refuse = |object: &str, cause: &str| Err(Failure::new(Code::InvalidArgument, object, cause));
    let network = NetworkMode::from(options.network());
    let publish: Vec<PortMapping> =
        options.publish.iter().copied().map(PortMapping::try_from).collect::<Result<_, _>>()?;
    if network != NetworkMode::Private && !publish.is_empty() {
        return refuse("published ports", "they need the child's own network: drop --publish or --net");
    }
    let egress = EgressPolicy::try_from(&options.egress[..])?;
    if network == NetworkMode::Host && !egress.is_none() {
        return refuse("egress", "the node's network needs none: drop --egress or --net");
    }
    if network == NetworkMode::Host && options.untrusted {
        return refuse(
            "an untrusted child",
            "services in the node's network may trust every local process: drop --net host",
        );
    }
    Ok((network, publish, egress))
}

fn parse_strategy(text: &str, owner_timeout_ms: u64) -> Result<PagingStrategy, Failure> {
    let refuse = |error| Failure::new(Code::InvalidArgument, format!("strategy {text}"), error);
    let mut strategy = if text.is_empty() { PagingStrategy::default() } else { text.parse().map_err(refuse)? };
    if owner_timeout_ms > 0 {
        let unreachable_timeout = Duration::from_millis(owner_timeout_ms);
        strategy.set_unreachable_timeout(unreachable_timeout).map_err(|error| {
            Failure::new(Code::InvalidArgument, format!("owner timeout {unreachable_timeout:?}"), error)
        })?;
    }
    Ok(strategy)
}

fn require_absolute(path: String) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        return Ok(path);
    }
    let object = format!("path {}", path.display());
    Err(Failure::new(Code::InvalidArgument, object, "it must begin with `/`: it is a path of the child's node"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farfork_fork::pager::{PagingMode, PagingStrategy};

    use super::{ContainerLimits, RootSpec, StartOptions, UNTRUSTED_TASKS_MAX, UsersSpec};
    use farfork_api::v1::{Bind, ChildOptions};

    #[test]
    fn a_shared_root_is_not_a_bind() {
        let bind = Bind { from: "/data".to_owned(), to: "/mnt".to_owned() };
        let shared = vec!["/".to_owned(), "/srv".to_owned()];
        let options = ChildOptions { shared, binds: vec![bind], ..ChildOptions::default() };
        let options = StartOptions::try_from(options).unwrap();
        assert_eq!(options.root, RootSpec::Shared);
        assert_eq!(options.binds, [("/srv".into(), "/srv".into()), ("/data".into(), "/mnt".into())]);
        assert_eq!(options.timeout, None);
    }

    #[test]
    fn a_strategy_is_parsed_by_name() {
        let options = |strategy: &str| {
            StartOptions::try_from(ChildOptions { strategy: strategy.to_owned(), ..ChildOptions::default() })
        };
        assert_eq!(options("").unwrap().strategy, PagingStrategy::default());
        assert_eq!(options("cow").unwrap().strategy.mode, PagingMode::Cow);
        let refused = options("slow").unwrap_err().to_string();
        assert!(refused.contains("strategy slow") && refused.contains("prefetch"), "{refused}");
    }

    #[test]
    fn an_owner_timeout_is_between_a_second_and_a_year() {
        let strategy = |owner_timeout_ms| {
            let options = ChildOptions { owner_timeout_ms, ..ChildOptions::default() };
            StartOptions::try_from(options).map(|options| options.strategy)
        };
        assert_eq!(strategy(0).unwrap(), PagingStrategy::default());
        let changed = PagingStrategy { unreachable_timeout: Duration::from_secs(2), ..PagingStrategy::default() };
        assert_eq!(strategy(2_000).unwrap(), changed);
        for owner_timeout_ms in [1, 999, u64::MAX] {
            let refused = strategy(owner_timeout_ms).unwrap_err().to_string();
            assert!(refused.contains("owner timeout") && refused.contains("one second"), "{refused}");
        }
    }

    #[test]
    fn limits_below_the_minimum_are_refused() {
        let options = |memory_bytes_max, cpu_millicores_max| {
            StartOptions::try_from(ChildOptions { memory_bytes_max, cpu_millicores_max, ..ChildOptions::default() })
        };
        assert_eq!(options(0, 0).unwrap().limits, ContainerLimits::default());
        let limits = ContainerLimits {
            memory_bytes_max: Some(64 << 20),
            cpu_millicores_max: Some(1500),
            ..ContainerLimits::default()
        };
        assert_eq!(options(64 << 20, 1500).unwrap().limits, limits);
        assert!(options(4096, 0).unwrap_err().to_string().contains("memory"));
        assert!(options(0, 1).unwrap_err().to_string().contains("processor"));
    }

    #[test]
    fn an_untrusted_child_has_a_process_limit() {
        let tasks_max = |processes_max, untrusted| {
            let options = ChildOptions { processes_max, untrusted, ..ChildOptions::default() };
            StartOptions::try_from(options).unwrap().limits.tasks_max
        };
        assert_eq!((tasks_max(0, false), tasks_max(7, false)), (None, Some(7)));
        assert_eq!((tasks_max(0, true), tasks_max(7, true)), (Some(UNTRUSTED_TASKS_MAX), Some(7)));
    }

    #[test]
    fn only_untrusted_children_get_a_user_namespace() {
        let options = |untrusted, shared: &[&str]| {
            let shared = shared.iter().map(ToString::to_string).collect();
            let options = ChildOptions { user_namespace: true, untrusted, shared, ..ChildOptions::default() };
            StartOptions::try_from(options).map(|options| options.users)
        };
        assert_eq!(options(true, &[]).unwrap(), UsersSpec::Private);
        assert!(options(false, &[]).unwrap_err().to_string().contains("--untrusted"));
        assert_eq!(options(true, &["/srv"]).unwrap(), UsersSpec::Private);
        assert!(options(true, &["/srv", "/"]).unwrap_err().to_string().contains("share directories below it"));
    }

    #[test]
    fn a_relative_path_is_refused() {
        let options = ChildOptions { shared: vec!["data".to_owned()], ..ChildOptions::default() };
        assert!(StartOptions::try_from(options).is_err());
    }
}
