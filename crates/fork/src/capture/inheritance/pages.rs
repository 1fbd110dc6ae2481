//! Computes the pages that a template inherits: pages that its map at the pager shows and that the template lacks. Pure.

use std::net::SocketAddr;
use std::ops::Range;

use farfork_fabric::Address;
use farfork_wire::PAGE_SIZE;
use farfork_wire::descriptor::{ExtentId, InheritedRun, Layer};

use crate::pager::{MapSegment, MemoryPlan, PageSource, PopulatedRun};

/// Addresses of a template whose pages another seed owns.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InheritedRange {
    start: u64,
    end: u64,
    /// Index into the layers.
    layer: u32,
    /// The extent in that layer, and the number of its page at `start`.
    extent: ExtentId,
    page: u64,
}

/// The pages that a template inherits.
#[derive(Debug, Default)]
pub(in crate::capture) struct InheritedPages {
    layers: Vec<Layer>,
    /// By ascending address.
    ranges: Vec<InheritedRange>,
}

impl InheritedPages {
    /// Returns the pages of the plan that the segments show and the template lacks. Segments and `populated` are ascending.
    /// `address`: where other nodes read the seeds of this node.
    pub(super) fn from_plan(
        plan: &MemoryPlan,
        segments: &[MapSegment],
        populated: &[Range<u64>],
        address: SocketAddr,
    ) -> Self {
        let mut inheritance = Self::default();
        let mut layers: Vec<Option<u32>> = vec![None; plan.sources.len()];
        for segment in segments {
            for run in runs_shown_by(plan, segment) {
                let (start, end) = shown_addresses(segment, run);
                let missing = subtract_ranges(start..end, populated);
                let source = run.origin.source as usize;
                for part in missing {
                    let layer = *layers[source]
                        .get_or_insert_with(|| inheritance.add_layer(build_layer(&plan.sources[source], address)));
                    let page = run.origin.page + segment.page_at(part.start) - run.first;
                    let extent = run.origin.extent;
                    inheritance.ranges.push(InheritedRange { start: part.start, end: part.end, layer, extent, page });
                }
            }
        }
        inheritance
    }

    fn add_layer(&mut self, layer: Layer) -> u32 {
        self.layers.push(layer);
        self.layers.len() as u32 - 1
    }

    /// The seeds that own some of the pages.
    pub(in crate::capture) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the inherited runs between two addresses. Page numbers count from `start`.
    pub(in crate::capture) fn runs_between(&self, start: u64, end: u64) -> Vec<InheritedRun> {
        let clipped = |range: &InheritedRange| {
            let (from, to) = (range.start.max(start), range.end.min(end));
            let page = range.page + (from - range.start) / PAGE_SIZE;
            let (first, count) = ((from - start) / PAGE_SIZE, (to - from) / PAGE_SIZE);
            InheritedRun { first, count, layer: range.layer, extent: range.extent, layer_page: page }
        };
        self.ranges_from(start).take_while(|range| range.start < end).map(clipped).collect()
    }

    /// Whether a page is inherited, so that the template lacks it.
    pub(in crate::capture) fn contains(&self, address: u64) -> bool {
        self.ranges_from(address).next().is_some_and(|range| range.start <= address)
    }

    /// Size of all inherited pages, in bytes.
    pub(in crate::capture) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges that end after an address.
    fn ranges_from(&self, address: u64) -> impl Iterator<Item = &InheritedRange> {
        let first = self.ranges.partition_point(|range| range.end <= address);
        self.ranges[first..].iter()
    }
}

/// The runs of the plan that overlap a segment.
fn runs_shown_by<'a>(plan: &'a MemoryPlan, segment: &MapSegment) -> impl Iterator<Item = &'a PopulatedRun> {
    let at = plan.extents.binary_search_by_key(&segment.extent, |extent| extent.id);
    let runs = at.map_or(&[][..], |at| &plan.extents[at].populated);
    let (first_page, end_page) = (segment.first_page, segment.first_page + segment.pages());
    let first = runs.partition_point(|run| run.first + run.count <= first_page);
    runs[first..].iter().take_while(move |run| run.first < end_page)
}

/// The addresses at which a segment shows a run.
fn shown_addresses(segment: &MapSegment, run: &PopulatedRun) -> (u64, u64) {
    let first = run.first.max(segment.first_page);
    let end = (run.first + run.count).min(segment.first_page + segment.pages());
    let address = |page: u64| segment.start + (page - segment.first_page) * PAGE_SIZE;
    (address(first), address(end))
}

/// The parts of a range that no range of `present` covers.
fn subtract_ranges(range: Range<u64>, present: &[Range<u64>]) -> Vec<Range<u64>> {
    let first = present.partition_point(|known| known.end <= range.start);
    let mut missing = Vec::new();
    let mut at = range.start;
    for known in present[first..].iter().take_while(|known| known.start < range.end) {
        if at < known.start {
            missing.push(at..known.start);
        }
        at = known.end;
    }
    if at < range.end {
        missing.push(at..range.end);
    }
    missing
}

/// Builds the layer of a source, with the address at which other nodes reach it.
fn build_layer(source: &PageSource, address: SocketAddr) -> Layer {
    let owner = match source.owner {
        Address::Tcp(owner) => owner,
        // Only seeds of this node are read through shared memory or the simulation.
        Address::Shm(_) | Address::Sim(_) => address,
    };
    Layer { seed: source.seed.clone(), token: source.token, owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::{PageOrigin, PagingStrategy, PopulatedExtent};
    use farfork_wire::Token;
    use proptest::prelude::*;

    const PAGES: u64 = 40;

    fn source(number: u64, owner: &str) -> PageSource {
        let seed = format!("n1.s{number:016x}").parse().unwrap();
        PageSource { seed, token: Token::from_bytes([number as u8; 16]), owner: owner.parse().unwrap() }
    }

    /// A plan with extents 0 and 2. The origin of each page follows from its number.
    fn plan(populated: &[bool]) -> MemoryPlan {
        let runs = |id: u32| {
            let is_there = |page: &u64| populated[(page + u64::from(id)) as usize % populated.len()];
            let pages = (0..PAGES).filter(is_there);
            pages
                .map(|first| {
                    let (source, extent) = ((first / 5 % 3) as u32, ExtentId(id + 10));
                    PopulatedRun { first, count: 1, origin: PageOrigin { source, extent, page: first + 100 } }
                })
                .collect()
        };
        let sources = vec![source(0, "tcp:127.0.0.1:1"), source(1, "shm:/run/x"), source(2, "tcp:127.0.0.1:3")];
        let extents = [0, 2].map(|id| PopulatedExtent { id: ExtentId(id), populated: runs(id) }).into();
        let (segments, members) = (Vec::new(), Vec::new());
        MemoryPlan {
            sources,
            segments,
            member_segments: members,
            extents,
            strategy: PagingStrategy::default(),
            is_zygote: false,
        }
    }

    proptest! {
        #[test]
        fn mapped_pages_that_are_not_private_are_inherited(
            populated in prop::collection::vec(any::<bool>(), 7..8),
            held in prop::collection::vec(any::<bool>(), 100..101),
            cuts in (0..20_u64, 20..40_u64, 0..20_u64, 20..40_u64),
            asked in (0..50_u64, 50..100_u64),
        ) {
            let plan = plan(&populated);
            let at = |page: u64| page * PAGE_SIZE;
            // Pages 0 to 39 show a part of extent 2, pages 50 to 89 a part of extent 0.
            let segment = |extent: u32, base: u64, from: u64, to: u64| MapSegment {
                start: at(base + from), end: at(base + to), extent: ExtentId(extent), first_page: from,
            };
            let segments = [segment(2, 0, cuts.0, cuts.1), segment(0, 50, cuts.2, cuts.3)];
            let held_ranges: Vec<_> = (0..100).filter(|page| held[*page as usize]).map(|page| at(page)..at(page + 1)).collect();
            let inheritance = InheritedPages::from_plan(&plan, &segments, &held_ranges, "127.0.0.1:9".parse().unwrap());
            let expected = |address_page: u64| {
                let (id, page) = if address_page < 50 { (2, address_page) } else { (0, address_page - 50) };
                let (from, to) = if id == 2 { (cuts.0, cuts.1) } else { (cuts.2, cuts.3) };
                let is_populated = populated[(page + u64::from(id)) as usize % 7];
                ((from..to).contains(&page) && is_populated && !held[address_page as usize])
                    .then(|| (plan.sources[(page / 5 % 3) as usize].seed.clone(), ExtentId(id + 10), page + 100))
            };
            let mut bytes = 0;
            for page in 0..100 {
                prop_assert_eq!(inheritance.contains(at(page)), expected(page).is_some(), "page {}", page);
                bytes += if expected(page).is_some() { PAGE_SIZE } else { 0 };
            }
            prop_assert_eq!(inheritance.bytes(), bytes);
            let runs: Vec<_> = inheritance.runs_between(at(asked.0), at(asked.1)).iter().flat_map(|run| {
                let seed = inheritance.layers()[run.layer as usize].seed.clone();
                let run = *run;
                (0..run.count).map(move |ahead| (asked.0 + run.first + ahead, (seed.clone(), run.extent, run.layer_page + ahead)))
            }).collect();
            let wanted: Vec<_> =
                (asked.0..asked.1).filter_map(|page| Some((page, expected(page)?))).collect();
            prop_assert_eq!(runs, wanted);
            for layer in inheritance.layers() {
                let port = layer.owner.port();
                prop_assert_eq!(port, [1, 9, 3][layer.token.expose()[0] as usize], "a seed of this node has its address");
            }
        }
    }
}
