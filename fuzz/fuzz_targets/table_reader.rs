//! Any bytes as a table: whatever it holds, nothing outside of it is read, and a decision ends.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use smc_agent_common::{
    Address, Fixed, Flow, Line, Role, TableReader, decide,
    table::{LAYOUT, MAGIC},
};

struct Table {
    fixed: Box<Fixed>,
    lines: Vec<Line>,
}

impl TableReader for Table {
    fn fixed(&self) -> &Fixed {
        &self.fixed
    }
    fn line(&self, index: u32) -> Option<&Line> {
        self.lines.get(index as usize)
    }
}

thread_local! {
    static TABLE: RefCell<Table> =
        RefCell::new(Table { fixed: bytemuck::allocation::zeroed_box(), lines: Vec::new() });
}

/// Writes all of `bytes` to `to`, over and over.
fn tile(to: &mut [u8], bytes: &[u8]) {
    if !bytes.is_empty() {
        to.chunks_mut(bytes.len()).for_each(|chunk| chunk.copy_from_slice(&bytes[..chunk.len()]));
    }
}

fuzz_target!(|bytes: &[u8]| {
    const FLOW: usize = 40;
    if bytes.len() < FLOW + 8 {
        return;
    }
    let (flow, bytes) = bytes.split_at(FLOW);
    let word = |at: usize| u32::from_ne_bytes(flow[at..at + 4].try_into().unwrap());
    let flow = Flow {
        peer: Address::v6([word(0), word(4), word(8), word(12)]),
        local: Address::v6([word(16), word(20), word(24), word(28)]),
        port: word(32) as u16,
        role: if word(36) & 1 == 0 { Role::Client } else { Role::Server },
    };
    TABLE.with_borrow_mut(|table| {
        let count = usize::from(bytes[0] & 63) + 1;
        table.lines.resize(count, Line { words: [0; 8] });
        tile(bytemuck::cast_slice_mut(&mut table.lines), bytes);
        let fixed = &mut *table.fixed;
        tile(bytemuck::bytes_of_mut(&mut fixed.header), bytes);
        tile(bytemuck::bytes_of_mut(&mut fixed.tries), bytes);
        tile(bytemuck::cast_slice_mut(&mut fixed.any), bytes);
        tile(bytemuck::cast_slice_mut(&mut fixed.ports[..]), bytes);
        tile(bytemuck::cast_slice_mut(&mut fixed.roots[..1 << 12]), bytes);
        tile(bytemuck::cast_slice_mut(&mut fixed.sets[..1 << 8]), bytes);
        if bytes[1] & 7 != 0 {
            (fixed.header.magic, fixed.header.layout) = (MAGIC, LAYOUT);
        }
        let _ = decide(&flow, table, |_, _| {});
    });
});
