//! Tests of the access group: which seeds have the same parent, and which credentials may access it.

use farfork_wire::descriptor::{Credentials, Descriptor};

use super::{Corruption, credentials, descriptor};

#[test]
fn an_access_group_is_one_parent_with_unchanged_credentials() {
    let group_key = |descriptor: &Descriptor| descriptor.access_group_key(&"n1".parse().unwrap());
    let first = group_key(&descriptor());
    let same: [Corruption; 4] = [
        |d| d.origin.monotonic_ns += 1,
        |d| d.process.exe = "/usr/bin/another".into(),
        |d| drop(d.threads.pop()),
        |d| d.descendants[0].threads[0].credentials = Some(credentials()),
    ];
    let others: [Corruption; 10] = [
        |d| d.origin.parent_pid += 1,
        |d| d.origin.parent_start_ticks += 1,
        |d| d.origin.boot_id = "another".into(),
        |d| (d.origin.boot_id, d.origin.parent_pid) = (r#"b" 4711"#.into(), 1),
        |d| d.process.dumpable = 0,
        |d| d.descendants[1].process.dumpable = 0,
        |d| d.threads[1].credentials = Some(Credentials { groups: vec![4], ..credentials() }),
        |d| d.descendants[1].process.credentials.no_new_privileges = true,
        |d| d.descendants[0].threads[0].credentials = Some(Credentials { uids: [0, 1, 0, 0], ..credentials() }),
        |d| d.process.credentials.capabilities_permitted = 0,
    ];
    for (changes, is_same) in [(&same[..], true), (&others[..], false)] {
        for (number, change) in changes.iter().enumerate() {
            let mut next = descriptor();
            change(&mut next);
            assert_eq!(group_key(&next) == first, is_same, "change {number}");
        }
    }
    assert_ne!(descriptor().access_group_key(&"n2".parse().unwrap()), first, "the key contains the actual owner");
    // The credentials of all processes change in the same way.
    let mut next = descriptor();
    next.process.credentials.gids = [7; 4];
    next.descendants.iter_mut().for_each(|member| member.process.credentials.gids = [7; 4]);
    assert_ne!(group_key(&next), first);
}
