//! The steps of a simulated node that dies, starts again, loses its replica, or catches up.

use super::{ChainSimulation, Entry, JoinAttempt, SimLog, count_of, point_of};
use crate::chain::ChainLog;
use crate::chain::membership::{begin_join, finish_join, remove_member};

impl ChainSimulation {
    pub(super) fn crash(&mut self, node: usize) {
        let state = &mut self.nodes[node];
        (state.is_alive, state.term, state.join) = (false, None, None);
        for log in &mut state.logs {
            log.link = None;
            log.appends.clear();
        }
    }

    /// Starts a node again. After a simulated power failure, the node leaves the chain, and its logs are shorter.
    pub(super) fn start(&mut self, node: usize) {
        self.nodes[node].is_alive = true;
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        self.nodes[node].is_catching_up = !self.record.chain.contains(&name);
        let epoch = self.record.epoch;
        let is_alone = self.record.chain == [name.clone()];
        if !is_alone && self.random.u32(..3) == 0 {
            self.change(node, |record| remove_member(record, &name, epoch));
            for log in &mut self.nodes[node].logs {
                let published = count_of(log.chain.published().point);
                let left = self.random.usize(published..=log.entries.len().max(published));
                log.entries.truncate(left);
            }
        }
        let (writer, term) = (self.record.writer, self.record.term);
        for (client, log) in self.nodes[node].logs.iter_mut().enumerate() {
            let published = log.chain.published();
            // Keeps unpublished records only if their term continues.
            let unpublished = log.entries.iter().skip(count_of(published.point));
            let is_current = |entry: &&Entry| writer == Some(client as u16) && entry.0 == term;
            let valid = count_of(published.point) + unpublished.take_while(is_current).count();
            log.entries.truncate(valid);
            // Adds placeholders: a log may lack records that are published.
            log.entries.resize(log.entries.len().max(count_of(published.point)), (0, 0));
            log.chain = ChainLog::open(published, point_of(log.entries.len()));
        }
    }

    /// Takes one step to bring a node back to the chain.
    pub(super) fn rejoin(&mut self, node: usize) {
        self.refresh(node);
        let name = self.nodes[node].name.clone();
        if self.is_catalog_dead || self.record.chain.contains(&name) {
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
                self.nodes[node].logs.iter_mut().for_each(|log| log.chain.forget());
                if self.change(node, |record| begin_join(record, &name)) {
                    self.nodes[node].join = Some(JoinAttempt { epoch: self.record.epoch, has_tree: false });
                } else if let Some(joining) = self.record.joining.clone().map(|name| self.index_of(&name))
                    && !self.nodes[joining].is_alive
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
        (state.tree, state.logs) = (Vec::new(), (0..state.logs.len() as u16).map(SimLog::new).collect());
    }

    fn copy_tree(&mut self, node: usize) {
        let lender = self.index_of(&self.record.chain.last().unwrap().clone());
        if !self.nodes[lender].is_alive {
            return self.remove_dead(node, lender);
        }
        let logs = 0..self.nodes.len();
        let is_ready = logs.clone().all(|log| {
            let chain = &self.nodes[node].logs[log].chain;
            let lent = self.nodes[lender].logs[log].chain.published().point;
            chain.is_announced() && lent >= chain.published().point
        });
        if !is_ready {
            return;
        }
        self.nodes[node].tree = self.nodes[lender].tree.clone();
        for log in logs {
            let mark = self.nodes[lender].logs[log].chain.published();
            self.nodes[node].logs[log].chain.install_tree(mark);
        }
        self.nodes[node].join.as_mut().unwrap().has_tree = true;
        self.nodes[node].is_catching_up = false;
    }
}
