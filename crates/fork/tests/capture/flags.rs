//! A capture includes the mapping flags of a parent with much memory. The flags are then read from a flag probe, a
//! short-lived clone of the template.

use farfork_sys::process;
use farfork_wire::descriptor::Backing;

use crate::harness::{Parent, children, mapping_at};

const AREA_PAGES: u64 = (16 << 20) / 4096;

#[test]
fn large_mappings_keep_their_flags() {
    let parent = Parent::start("advised", &[]);
    for _ in 0..2 {
        let captured = parent.capture().unwrap();
        let descriptor = &captured.descriptor;
        let mapping = |name: &str| mapping_at(descriptor, parent.reported(name));
        let pages = |name: &str| match mapping(name).backing {
            Backing::Anonymous { extent: Some(id) } => {
                descriptor.extents[id.0 as usize].populated.iter().map(|run| run.count).sum()
            }
            Backing::Anonymous { extent: None } => 0,
            other => panic!("{name}: {other:?}"),
        };
        for (name, flags, populated) in [
            ("plain", (false, false, false), AREA_PAGES),
            ("wiped", (true, false, false), 0),
            ("undumped", (false, true, false), AREA_PAGES),
            ("unforked", (false, false, true), AREA_PAGES),
        ] {
            let mapping_flags = mapping(name).flags;
            assert_eq!((mapping_flags.wipe_on_fork, mapping_flags.dont_dump, mapping_flags.dont_fork), flags, "{name}");
            assert!(mapping_flags.no_huge_page, "{name}");
            assert_eq!((mapping(name).start, pages(name)), (parent.reported(name), populated), "{name}");
        }
        let key = parent.reported("joined") + (1 << 19);
        let around = [key - 1, key, key + (1 << 18) - 1, key + (1 << 18)];
        let is_held = |at: u64| descriptor.mappings.iter().any(|one| one.start <= at && at < one.end);
        assert_eq!(around.map(is_held), [true, false, false, true], "only the MADV_DONTFORK part is left out");
        assert!(!has_area(captured.template.pid(), key) && has_area(captured.template.pid(), key - 1));
        assert_eq!((marks(parent.pid(), key), marks(parent.pid(), key - 1)), (vec!["dc", "dd"], vec!["dd"]));
        // Memory that is excluded from forks and cores is not even in the template.
        let absent = parent.reported("absent");
        assert!(!has_area(captured.template.pid(), absent));
        for (name, flags) in [("unforked", vec!["dc"]), ("absent", vec!["dc", "dd"]), ("plain", vec![])] {
            assert_eq!(marks(parent.pid(), parent.reported(name)), flags, "the parent's {name}");
        }
        assert!(!descriptor.mappings.iter().any(|one| one.start <= absent && absent < one.end));
        assert_eq!(children(captured.template.pid()), Vec::<i32>::new(), "the flag probe is gone");
        drop(captured);
        assert_eq!(children(parent.pid()), Vec::<i32>::new(), "the template is gone");
    }
}

fn has_area(pid: i32, address: u64) -> bool {
    process::read_maps(pid).unwrap().iter().any(|entry| entry.start <= address && address < entry.end)
}

/// The flags of an area that exclude its memory from copies: `dc` (fork), `dd` (core).
pub(crate) fn marks(pid: i32, address: u64) -> Vec<&'static str> {
    let areas = process::read_smaps(pid).unwrap();
    let area = areas.iter().find(|entry| entry.start <= address && address < entry.end).unwrap();
    ["dc", "dd"].into_iter().filter(|flag| area.has_flag(flag)).collect()
}
