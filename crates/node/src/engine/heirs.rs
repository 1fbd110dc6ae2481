//! Who may be in the root of a child after it: further children of its seed, when it has left no trace there, which the container tells
//! (`farfork_container::Heirs`). Here is decided which children may have heirs at all.

use farfork_container::{Heirs, Limits, Protection, RootSpec, UsersSpec};
use farfork_wire::SeedId;

use super::StartOptions;
use crate::network::{FanOut, Network};

/// The heirs of a child that is started so; `None` where it is to have none: it is not trusted, it has more of the node or from its
/// user than others, or is where strangers are, to whom it could send a descriptor.
pub(super) fn of(seed: &SeedId, options: &StartOptions, fan_out: &FanOut) -> Option<Heirs> {
    let StartOptions { root, binds, paused, attached, limits, protection, users, network, .. } = options;
    let is_plain = *root == RootSpec::Overlay
        && binds.is_empty()
        && *limits == Limits::default()
        && *protection == Protection::default()
        && *users == UsersSpec::Nodes
        && !(*paused || *attached);
    let fan_out = match network {
        Network::Private => None,
        Network::Shared => Some(fan_out.number()),
        Network::Host => return None,
    };
    is_plain.then(|| Heirs { seed: seed.to_string(), fan_out })
}

#[cfg(test)]
mod tests {
    use super::{FanOut, Heirs, SeedId, StartOptions, of};
    use crate::api::v1::{Bind, ChildOptions, Network};

    fn seed() -> SeedId {
        "n1.s00f3a96c5d217e84".parse().unwrap()
    }

    fn heirs(options: ChildOptions, fan_out: &FanOut) -> Option<Heirs> {
        of(&seed(), &StartOptions::try_from(options).unwrap(), fan_out)
    }

    #[test]
    fn a_plain_child_has_heirs_of_its_seed() {
        let (one, other) = (FanOut::default(), FanOut::default());
        let plain = |fan_out| heirs(ChildOptions::default(), fan_out);
        assert_eq!(plain(&one).unwrap().seed, seed().to_string());
        assert_eq!(plain(&one), plain(&other));
        let shared = |fan_out| {
            heirs(ChildOptions { network: Network::Shared.into(), ..ChildOptions::default() }, fan_out).unwrap()
        };
        assert_eq!(shared(&one), shared(&one));
        assert_ne!(shared(&one), shared(&other));
        assert_ne!(Some(shared(&one)), plain(&one));
    }

    #[test]
    fn no_other_child_has() {
        let bind = Bind { from: "/data".to_owned(), to: "/mnt".to_owned() };
        let plain = ChildOptions::default;
        let all = [
            ChildOptions { binds: vec![bind], ..plain() },
            ChildOptions { shared: vec!["/".to_owned()], ..plain() },
            ChildOptions { shared: vec!["/srv".to_owned()], ..plain() },
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
            assert_eq!(heirs(options.clone(), &FanOut::default()), None, "{options:?}");
        }
    }
}
