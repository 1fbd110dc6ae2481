//! The steps of simulated clients that wait to write, and of the head that ends a fenced term.

use std::sync::Arc;

use super::ChainSimulation;
use crate::chain::membership::{begin_term, end_term};
use crate::chain::writer_turn::{FENCE_WAIT, FencedTerm, FinishStep, WriteStep};

impl ChainSimulation {
    /// Takes one step to make the client of a node the writer.
    pub(super) fn acquire(&mut self, node: usize) {
        self.refresh(node);
        if self.is_catalog_dead || !self.answers(node) || self.nodes[node].term.is_some() {
            return;
        }
        let record = Arc::clone(&self.nodes[node].known);
        match WriteStep::of(&record, node as u16, &self.nodes[node].name.clone()) {
            WriteStep::OffChain => {}
            WriteStep::Begin => {
                self.change(node, |record| begin_term(record, node as u16));
                let state = &mut self.nodes[node];
                state.term = Some(self.record.term);
                // The client begins at the end of the valid part of its log.
                let log = &mut state.logs[node];
                log.records.truncate(log.copied.chain.stored());
            }
            WriteStep::Finish(FencedTerm { head, term }) => {
                let head = self.index_of(&head.unwrap());
                self.call(node, head, |simulation| simulation.finish(head, term));
            }
            WriteStep::EndOwn(term) => self.release(node, term),
            WriteStep::Release { node: writer, term } => {
                let writer = self.index_of(&writer.unwrap());
                self.call(node, writer, |simulation| simulation.release(writer, term));
            }
        }
    }

    /// Makes a call from a node to another one, or to itself. A node that does not answer may be removed.
    fn call(&mut self, from: usize, to: usize, execute: impl FnOnce(&mut Self)) {
        if self.answers(to) { execute(self) } else { self.remove_dead(from, to) }
    }

    /// A node ends the term of its client.
    fn release(&mut self, node: usize, term: u32) {
        self.refresh(node);
        let is_term = self.record.writer == Some(node as u16) && self.record.term == term;
        if is_term && !self.record.is_writer_fenced {
            let state = &mut self.nodes[node];
            state.term = None;
            state.logs[node].copied.request_look();
            self.drive(node, node);
            self.end_published_term(node, node, term);
        }
    }

    /// A node ends the term of a fenced writer, if it is the head.
    fn finish(&mut self, node: usize, term: u32) {
        self.refresh(node);
        if let FinishStep::Publish(writer) = FinishStep::of(&self.record, term, &self.nodes[node].name)
            && self.network.now >= self.fenced_at + FENCE_WAIT
        {
            self.end_published_term(node, usize::from(writer), term);
        }
    }

    /// Ends a term if all records are published everywhere, as far as the first node of the path knows.
    fn end_published_term(&mut self, node: usize, writer: usize, term: u32) {
        let log = &mut self.nodes[node].logs[writer].copied;
        let stored = log.chain.stored();
        if log.chain.published_everywhere() >= stored {
            self.change(node, |record| end_term(record, writer as u16, term));
        } else {
            log.raise_urgent_end(stored);
            self.drive(node, writer);
        }
    }
}
