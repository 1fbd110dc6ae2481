//! The kernel's flags of areas are carried where there is so much memory that they are asked of a template's twin.

use farfork_wire::descriptor::Backing;

use crate::harness::{Parent, children, mapping_at};

const AREA_PAGES: u64 = (16 << 20) / 4096;

#[test]
fn areas_of_much_memory_keep_their_flags() {
    let parent = Parent::start("advised", &[]);
    for _ in 0..2 {
        let captured = parent.capture().unwrap();
        let descriptor = &captured.descriptor;
        let mapping = |name: &str| mapping_at(descriptor, parent.told(name));
        let pages = |name: &str| match mapping(name).backing {
            Backing::Anonymous { extent: Some(id) } => {
                descriptor.extents[id.0 as usize].populated.iter().map(|run| run.count).sum()
            }
            Backing::Anonymous { extent: None } => 0,
            other => panic!("{name}: {other:?}"),
        };
        for (name, wiped, undumped, held) in
            [("plain", false, false, AREA_PAGES), ("wiped", true, false, 0), ("undumped", false, true, AREA_PAGES)]
        {
            let flags = mapping(name).flags;
            assert_eq!((flags.wipe_on_fork, flags.dont_dump, flags.no_huge_page), (wiped, undumped, true), "{name}");
            assert_eq!((mapping(name).start, pages(name)), (parent.told(name), held), "{name}");
        }
        let absent = parent.told("absent");
        assert!(!descriptor.mappings.iter().any(|one| one.start <= absent && absent < one.end));
        assert_eq!(children(captured.template.pid()), Vec::<i32>::new(), "the twin is gone");
        drop(captured);
        assert_eq!(children(parent.pid()), Vec::<i32>::new(), "so is the template");
    }
}
