//! What there is on a node at the moment that somebody asks, and what its pager has counted.

use std::fmt;
use std::sync::{Arc, Weak};

use farfork_cluster::membership::{State, View};
use farfork_container::{ContainerSpec, NetworkSpec, RootSpec};
use farfork_fork::pager::{CacheStats, PagerCounters};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::children::{Child, Status};
use crate::node::Node;

/// A node, to be looked at; nothing is told of one that has gone.
#[derive(Debug)]
pub(super) struct Inventory(pub(super) Weak<Node>);

/// Name, what it is, its unit.
type Description = (&'static str, &'static str, Option<Unit>);

/// What one label says, with the number for it.
type Labelled = (&'static str, u64);

impl Collector for Inventory {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(node) = self.0.upgrade() else { return Ok(()) };
        let mut told = Told(encoder);
        told.seeds(&node)?;
        told.children(&node)?;
        told.containers(&node)?;
        told.nodes(&node)?;
        told.memory(&node.children.counted())?;
        node.pager.cache().map_or(Ok(()), |cache| told.cache(&cache))
    }
}

struct Told<'a>(DescriptorEncoder<'a>);

impl Told<'_> {
    fn seeds(&mut self, node: &Node) -> fmt::Result {
        let seeds = node.seeds.all();
        let templates = seeds.iter().filter(|seed| !seed.frozen).count();
        let memory_bytes = seeds.iter().map(|seed| seed.memory_bytes).sum();
        self.gauge(("seeds", "Seeds of this node", None), count(seeds.len()))?;
        self.gauge(("templates", "Processes that hold the memory of seeds and never run", None), count(templates))?;
        let help = "Memory with contents that this node's seeds hold for children, copied or not";
        self.gauge(("seed_memory", help, Some(Unit::Bytes)), memory_bytes)
    }

    fn children(&mut self, node: &Node) -> fmt::Result {
        let children = node.children.all();
        let that =
            |is: fn(&Status) -> bool| count(children.iter().filter(|child| is(&child.status().borrow())).count());
        let states = [
            ("paused", that(|status| matches!(status, Status::Paused))),
            ("running", that(|status| matches!(status, Status::Running))),
            ("ended", that(|status| matches!(status, Status::Ended(_)))),
        ];
        let help = "Children of this node, those that ended until they are forgotten";
        self.gauges(("children", help, None), "state", &states)?;
        let is_lost = |child: &&Arc<Child>| child.lives() && child.memory_lost().is_some();
        let help = "Children that run and cannot fetch their memory any more";
        self.gauge(("children_memory_lost", help, None), count(children.iter().filter(is_lost).count()))
    }

    fn containers(&mut self, node: &Node) -> fmt::Result {
        let ready = |root, network| {
            count(node.engine.containers_ready(ContainerSpec { root, network, ..ContainerSpec::default() }))
        };
        let roots = |network| [RootSpec::Overlay, RootSpec::Shared].map(|root| (name_of(root), ready(root, network)));
        let zygotes = node.engine.zygotes().counts();
        let help = "Copies of seeds that further children on this node are forked from";
        self.gauge(("zygotes", help, None), zygotes.kept.into())?;
        self.counter("zygote_children", "Children of this node that were forked from a zygote", zygotes.children)?;
        let help = "Of these, children that stood before they were asked for";
        self.counter("standby_children", help, zygotes.stood_by)?;
        let help = "Zygotes that were made before a child of their seed was asked for";
        self.counter("foretold_zygotes", help, zygotes.foretold)?;
        let help = "Of these, zygotes that children were forked from";
        self.counter("foretold_zygotes_used", help, zygotes.foretold_used)?;
        let help = "Containers that are ready for children to come";
        self.gauges(("pool_containers", help, None), "root", &roots(NetworkSpec::Own))?;
        let help = "The same for children that share a network or are in the node's";
        self.gauges(("pool_containers_without_network", help, None), "root", &roots(NetworkSpec::Nodes))
    }

    fn nodes(&mut self, node: &Node) -> fmt::Result {
        let views = node.peers.views();
        let that = |state, is_ready: bool| {
            let is_that = |view: &&View| view.state == state && (view.member.not_ready.is_none() == is_ready);
            count(views.iter().filter(is_that).count())
        };
        let unreachable = that(State::Unreachable, true) + that(State::Unreachable, false);
        let states = [
            ("alive", that(State::Alive, true)),
            ("not_ready", that(State::Alive, false)),
            ("unreachable", unreachable),
        ];
        let help = "Nodes of the cluster as this one hears of them, itself included";
        self.gauges(("nodes", help, None), "state", &states)?;
        let help = "Whether this node takes children: 1, or 0 where its pager does not answer";
        self.gauge(("ready", help, None), u64::from(node.pager.not_ready().is_none()))
    }

    fn memory(&mut self, counted: &PagerCounters) -> fmt::Result {
        let PagerCounters { faults_missing, faults_late, faults_zero, faults_cached, .. } = *counted;
        let answered = [faults_missing, faults_late, faults_zero, faults_cached];
        let kinds: Vec<Labelled> = ["missing", "late", "zero", "cached"].into_iter().zip(answered).collect();
        let help = "Page faults of children by what answered them: a read on their behalf, one under way, zeroes, \
                    what the node had kept";
        self.counters(("page_faults", help, None), "kind", &kinds)?;
        let later = counted.round_trips.saturating_sub(counted.round_trips_demand);
        let reads = [("fault", counted.round_trips_demand), ("later", later)];
        let help = "Reads of seeds' owners that were answered, for a fault or ahead of one";
        self.counters(("owner_reads", help, None), "for", &reads)?;
        let from = |all: u64, host: u64| [("network", all.saturating_sub(host)), ("host", host)];
        let help = "Pages that children got from the owners of their seeds";
        let pages = from(counted.pages_fetched, counted.pages_same_host);
        self.counters(("fetched_pages", help, None), "from", &pages)?;
        let help = "Bytes of pages read from the owners of seeds, over the network or from the same host";
        let bytes = from(counted.bytes_fetched, counted.bytes_same_host);
        self.counters(("fetched", help, Some(Unit::Bytes)), "from", &bytes)?;
        self.counter("zero_pages", "Pages that children got as zeroes", counted.zero_pages)?;
        let help = "Time from asking for a page that somebody waits for to its being there, summed up";
        self.seconds("fault_wait", help, counted.demand_us)?;
        self.seconds("page_install", "Time spent in installing pages, summed up", counted.install_us)
    }

    fn cache(&mut self, cache: &CacheStats) -> fmt::Result {
        let help = "Memory in which this node keeps pages of other nodes' seeds";
        self.gauge(("page_cache", help, Some(Unit::Bytes)), cache.bytes)?;
        let help = "Most memory in which this node keeps pages of other nodes' seeds";
        self.gauge(("page_cache_limit", help, Some(Unit::Bytes)), cache.bytes_max)?;
        self.gauge(("page_cache_seeds", "Seeds that this node keeps pages of", None), cache.seeds)?;
        let what = [("hit", cache.hits), ("miss", cache.misses), ("evicted", cache.evictions)];
        let help = "Pages that children got from the node's cache, those that were not there, and those that made room \
                    for others; since its pager began";
        self.counters(("page_cache_pages", help, None), "what", &what)
    }

    fn gauge(&mut self, (name, help, unit): Description, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &sentence(help), unit.as_ref(), MetricType::Gauge)?;
        ConstGauge::new(signed(value)).encode(metric)
    }

    fn gauges(&mut self, (name, help, unit): Description, label: &str, values: &[Labelled]) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, &sentence(help), unit.as_ref(), MetricType::Gauge)?;
        let mut each = values.iter();
        each.try_for_each(|(said, value)| {
            ConstGauge::new(signed(*value)).encode(metric.encode_family(&[(label, *said)])?)
        })
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &sentence(help), None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn counters(&mut self, (name, help, unit): Description, label: &str, values: &[Labelled]) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, &sentence(help), unit.as_ref(), MetricType::Counter)?;
        let mut each = values.iter();
        each.try_for_each(|(said, value)| ConstCounter::new(*value).encode(metric.encode_family(&[(label, *said)])?))
    }

    fn seconds(&mut self, name: &str, help: &str, us: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, &sentence(help), Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(us as f64 / 1e6).encode(metric)
    }
}

/// As the label says it.
fn name_of(root: RootSpec) -> &'static str {
    match root {
        RootSpec::Overlay => "overlay",
        RootSpec::Shared => "shared",
    }
}

fn count(items: usize) -> u64 {
    items as u64
}

/// As the library ends what it tells of histograms.
fn sentence(help: &str) -> String {
    format!("{help}.")
}

/// As gauges are told.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
