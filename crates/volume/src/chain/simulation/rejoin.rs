//! The steps of a simulated node that dies, starts again, loses its replica, or catches up.

use std::time::Instant;

use super::{ChainSimulation, JoinAttempt, SimLog, TIMES, new_log};
use crate::chain::membership::{begin_join, finish_join, remove_member};

impl ChainSimulation {
    /// Ends the process of a node until some time.
    pub(super) fn crash(&mut self, node: usize, until: Instant) {
        let now = self.network.now;
        let state = &mut self.nodes[node];
        (state.is_alive, state.term, state.join, state.is_publishing) = (false, None, None, false);
        state.silent = Some((now, until));
    }

    /// Starts a node again. After a simulated power failure, the node leaves the chain, and its logs are shorter.
    pub(super) fn start(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        (state.is_alive, state.silent) = (true, None);
        state.boot += 1;
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        self.nodes[node].is_catching_up = !self.record.chain.contains(&name);
        let epoch = self.record.epoch;
        let is_alone = self.record.chain == [name.clone()];
        let has_lost_memory = !is_alone && self.random.u32(..3) == 0;
        if has_lost_memory {
            self.change(node, |record| remove_member(record, &name, epoch));
        }
        let (writer, term, now) = (self.record.writer, self.record.term, self.network.now);
        for (client, log) in self.nodes[node].logs.iter_mut().enumerate() {
            let published = log.copied.chain.published();
            // Unpublished records count only if their term continues.
            let term = (writer == Some(client as u16)).then_some(term);
            let lost = has_lost_memory.then(|| self.random.usize(..10));
            let mut records = std::mem::take(&mut log.records);
            records.reopen(published.point, term, lost);
            let (call, region) = (log.call + 1, log.region + 1);
            *log = SimLog { call, region, ..SimLog::open(&name, client, TIMES, published, records, now) };
        }
        (0..self.nodes.len()).for_each(|log| self.wake(node, log));
    }

    /// Takes one step to bring a node back to the chain.
    pub(super) fn rejoin(&mut self, node: usize) {
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        if !self.answers(node) || self.is_catalog_dead || self.record.chain.contains(&name) {
            self.nodes[node].join = None;
            return;
        }
        let epoch = self.record.epoch;
        let must_abort = !self.is_healing && self.random.u32(..50) == 0;
        match &self.nodes[node].join {
            Some(join) if join.epoch == epoch && must_abort => {
                self.nodes[node].join = None;
                self.change(node, |record| remove_member(record, &name, epoch));
            }
            Some(join) if join.epoch == epoch && join.has_tree => {
                if self.change(node, |record| finish_join(record, &name, epoch)) {
                    self.nodes[node].join = None;
                    self.counts.joins += 1;
                }
            }
            Some(join) if join.epoch == epoch => self.copy_tree(node),
            _ => {
                self.nodes[node].is_catching_up = true;
                for log in &mut self.nodes[node].logs {
                    log.copied.chain.forget();
                    log.region += 1;
                }
                if self.change(node, |record| begin_join(record, &name)) {
                    self.nodes[node].join = Some(JoinAttempt { epoch: self.record.epoch, has_tree: false });
                } else if let Some(joining) = self.record.joining.clone().map(|name| self.index_of(&name))
                    && !self.answers(joining)
                {
                    self.remove_dead(node, joining);
                }
            }
        }
    }

    /// Removes the directory of a replica while its node runs. The last live replica stays.
    pub(super) fn lose_replica(&mut self, node: usize) {
        let (name, epoch) = (self.nodes[node].name.clone(), self.record.epoch);
        self.change(node, |record| remove_member(record, &name, epoch));
        if self.record.chain.contains(&name) {
            return;
        }
        self.counts.losses += 1;
        let state = &mut self.nodes[node];
        (state.term, state.join, state.is_catching_up) = (None, None, true);
        state.tree = Vec::new();
        let now = self.network.now;
        for (client, log) in state.logs.iter_mut().enumerate() {
            let (call, region) = (log.call + 1, log.region + 1);
            *log = SimLog { call, region, ..new_log(&name, client, now) };
        }
        (0..self.nodes.len()).for_each(|log| self.wake(node, log));
    }

    fn copy_tree(&mut self, node: usize) {
        let lender = self.index_of(&self.record.chain.last().unwrap().clone());
        if !self.answers(lender) {
            return self.remove_dead(node, lender);
        }
        let logs = 0..self.nodes.len();
        let is_ready = logs.clone().all(|log| {
            let chain = &self.nodes[node].logs[log].copied.chain;
            let lent = self.nodes[lender].logs[log].copied.chain.published().point;
            chain.is_announced() && lent >= chain.published().point
        });
        if !is_ready {
            return;
        }
        self.nodes[node].tree = self.nodes[lender].tree.clone();
        for log in logs {
            let mark = self.nodes[lender].logs[log].copied.chain.published();
            self.nodes[node].logs[log].copied.chain.install_tree(mark);
        }
        self.nodes[node].join.as_mut().unwrap().has_tree = true;
        self.nodes[node].is_catching_up = false;
        self.schedule_publishing(node);
    }
}
