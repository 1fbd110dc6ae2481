//! Decides which children may use a root one after another (`farfork_container::RootReuseKey`).
//!
//! Only children of the same parent may share a root, even if their seeds differ. The container checks that the
//! previous child left no trace.

use std::path::Path;
use std::sync::Arc;

use farfork_container::{ContainerLimits, RootProtection, RootReuseKey, RootSpec, UsersSpec};
use farfork_wire::SeedId;

use super::StartOptions;
use crate::network::{FanOutNetwork, NetworkMode};

// A root leaks only through a descriptor of one of its directories. A child with its own network cannot pass a
// descriptor to another container. But a process that may inspect the child on its node can open such a descriptor. So
// seeds of one parent share roots as long as the same processes may inspect their children. The key of these seeds
// (`farfork_wire::Descriptor::access_group_key`) contains the parent, and the users, groups, capabilities and dumpable
// flag of all threads. Children that share a network can pass descriptors to each other: their roots belong to the
// seed, and are dropped with it.
/// Returns the key under which a child with these options may reuse a root and pass it on. `root_directory`: the directory
/// that is the child's root. `None` for a child with such a directory, with restrictions or additional access, and for a
/// child in the node's network, where it could send a descriptor to any process.
pub(super) fn root_reuse_key(
    seed: &SeedId,
    lineage: &Arc<str>,
    options: &StartOptions,
    root_directory: Option<&Path>,
    fan_out: &FanOutNetwork,
) -> Option<RootReuseKey> {
    let StartOptions { root, binds, paused, attached, limits, protection, users, network, .. } = options;
    let is_plain = *root == RootSpec::Overlay
        && root_directory.is_none()
        && binds.is_empty()
        && *limits == ContainerLimits::default()
        && *protection == RootProtection::default()
        && *users == UsersSpec::Host
        && !(*paused || *attached);
    is_plain.then_some(())?;
    match network {
        NetworkMode::Private => Some(RootReuseKey { lineage: lineage.clone(), fan_out: None }),
        NetworkMode::Shared => Some(RootReuseKey { lineage: seed.to_string().into(), fan_out: Some(fan_out.id()) }),
        NetworkMode::Host => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, FanOutNetwork, RootReuseKey, SeedId, StartOptions, root_reuse_key};
    use farfork_api::v1::{Bind, ChildOptions, Network};

    const SEED: &str = "n1.s00f3a96c5d217e84";

    fn heirs_of(seed: &str, lineage: &str, options: ChildOptions, fan_out: &FanOutNetwork) -> Option<RootReuseKey> {
        let (seed, lineage): (SeedId, Arc<str>) = (seed.parse().unwrap(), lineage.into());
        let options = StartOptions::try_from(options).unwrap();
        root_reuse_key(&seed, &lineage, &options, options.root_directory.as_deref(), fan_out)
    }

    fn heirs(options: ChildOptions, fan_out: &FanOutNetwork) -> Option<RootReuseKey> {
        heirs_of(SEED, "n1 4711", options, fan_out)
    }

    #[test]
    fn children_of_one_parent_reuse_roots() {
        let (one, other) = (FanOutNetwork::default(), FanOutNetwork::default());
        let plain = |fan_out| heirs(ChildOptions::default(), fan_out).unwrap();
        assert_eq!(plain(&one), plain(&other));
        let in_shared = || ChildOptions { network: Network::Shared.into(), ..ChildOptions::default() };
        let shared = |fan_out| heirs(in_shared(), fan_out).unwrap();
        assert_eq!(shared(&one), shared(&one));
        assert_ne!(shared(&one), shared(&other));
        assert_ne!(shared(&one), plain(&one));
        assert_eq!(&*shared(&one).lineage, SEED, "the roots are dropped with the seed");

        let next = "n1.s0000000000000001";
        let of_next = |lineage, options| heirs_of(next, lineage, options, &one).unwrap();
        assert_eq!(of_next("n1 4711", ChildOptions::default()), plain(&one), "the next seed of its parent");
        assert_ne!(of_next("n1 4712", ChildOptions::default()), plain(&one));
        assert_ne!(of_next("n1 4711", in_shared()), shared(&one), "in one network with others");
    }

    #[test]
    fn children_with_special_options_reuse_no_root() {
        let bind = Bind { from: "/data".to_owned(), to: "/mnt".to_owned() };
        let plain = ChildOptions::default;
        let all = [
            ChildOptions { binds: vec![bind], ..plain() },
            ChildOptions { shared: vec!["/".to_owned()], ..plain() },
            ChildOptions { shared: vec!["/srv".to_owned()], ..plain() },
            ChildOptions { root: "/srv/image".to_owned(), ..plain() },
            ChildOptions { paused: true, ..plain() },
            ChildOptions { attached: true, ..plain() },
            ChildOptions { memory_bytes_max: 64 << 20, ..plain() },
            ChildOptions { cpu_millicores_max: 500, ..plain() },
            ChildOptions { processes_max: 9, ..plain() },
            ChildOptions { untrusted: true, ..plain() },
            ChildOptions { untrusted: true, user_namespace: true, ..plain() },
            ChildOptions { read_only: true, ..plain() },
            ChildOptions { network: Network::Host.into(), ..plain() },
        ];
        for options in all {
            assert_eq!(heirs(options.clone(), &FanOutNetwork::default()), None, "{options:?}");
        }
    }
}
