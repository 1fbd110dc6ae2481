//! Flattens a seed's layers for its image: the pages that a seed inherits become its own.

use std::ops::Range;

use farfork_wire::descriptor::{Descriptor, Extent, InheritedRun, PageRun};

//  before   ├─ populated ─┤ zeroes ├─ inherited ─┤├─ populated ─┤      and layers
//  image    ├─ populated ─┤ zeroes ├─────── populated ──────────┤      no layers
/// Returns the descriptor of a seed in which all inherited pages are the seed's own.
pub(crate) fn flatten_layers(descriptor: &Descriptor) -> Descriptor {
    let mut whole = Descriptor { layers: Vec::new(), ..descriptor.clone() };
    for extent in whole.extents.iter_mut().filter(|extent| !extent.inherited.is_empty()) {
        let inherited = std::mem::take(&mut extent.inherited);
        let runs = extent
            .populated
            .drain(..)
            .chain(inherited.iter().map(|run| PageRun { first: run.first, count: run.count }));
        let mut runs: Vec<PageRun> = runs.collect();
        runs.sort_unstable_by_key(|run| run.first);
        extent.populated = merge_adjacent(runs);
    }
    whole
}

/// Merges adjacent runs: the runs of a descriptor never touch one another.
fn merge_adjacent(runs: Vec<PageRun>) -> Vec<PageRun> {
    let mut joined: Vec<PageRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.first + last.count == run.first => last.count += run.count,
            _ => joined.push(run),
        }
    }
    joined
}

/// Adjacent pages of an extent with one owner: their page numbers, and the inherited run if another seed owns them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnerRun<'a> {
    pub(crate) inherited: Option<&'a InheritedRun>,
    pub(crate) pages: Range<u64>,
}

/// Splits populated or inherited pages of an extent into pieces, each with one owner.
pub(crate) fn split_by_owner(extent: &Extent, pages: Range<u64>) -> Vec<OwnerRun<'_>> {
    let mut pieces = Vec::new();
    let mut next = pages.start;
    let first = extent.inherited.partition_point(|run| run.first + run.count <= pages.start);
    for run in extent.inherited[first..].iter().take_while(|run| run.first < pages.end) {
        let (start, end) = (run.first.max(next), (run.first + run.count).min(pages.end));
        if next < start {
            pieces.push(OwnerRun { inherited: None, pages: next..start });
        }
        pieces.push(OwnerRun { inherited: Some(run), pages: start..end });
        next = end;
    }
    if next < pages.end {
        pieces.push(OwnerRun { inherited: None, pages: next..pages.end });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use farfork_wire::descriptor::{ExtentId, ExtentSource};

    use super::*;

    fn inherited(first: u64, count: u64) -> InheritedRun {
        InheritedRun { first, count, layer: 0, extent: ExtentId(4), layer_page: first + 100 }
    }

    fn extent() -> Extent {
        let run = |first, count| PageRun { first, count };
        Extent {
            source: ExtentSource::Template { process: 0, address: 0x1000 },
            bytes: 100 << 12,
            populated: vec![run(0, 2), run(8, 4), run(50, 1)],
            inherited: vec![inherited(3, 2), inherited(5, 3), inherited(12, 8)],
        }
    }

    #[test]
    fn pages_are_read_from_their_owner() {
        let extent = extent();
        let found = |pages: Range<u64>| -> Vec<(Option<u64>, Range<u64>)> {
            let pieces = split_by_owner(&extent, pages).into_iter();
            pieces.map(|piece| (piece.inherited.map(|run| run.layer_page), piece.pages)).collect()
        };
        assert_eq!(found(0..2), [(None, 0..2)]);
        assert_eq!(found(4..16), [(Some(103), 4..5), (Some(105), 5..8), (None, 8..12), (Some(112), 12..16)]);
        assert_eq!(found(19..20), [(Some(112), 19..20)]);
        assert_eq!(found(50..51), [(None, 50..51)]);
    }

    #[test]
    fn adjacent_runs_are_merged() {
        let runs = merge_adjacent(vec![
            PageRun { first: 0, count: 2 },
            PageRun { first: 3, count: 2 },
            PageRun { first: 5, count: 3 },
            PageRun { first: 8, count: 1 },
        ]);
        assert_eq!(runs, [PageRun { first: 0, count: 2 }, PageRun { first: 3, count: 6 }]);
    }
}
