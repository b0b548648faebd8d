//! The ring buffer of records: read in place, many at a time, and measured.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence},
};

use aya::maps::MapData;

/// In the first word of a record (uapi/linux/bpf.h): it is being written; it was given up; the bytes before its data.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: usize = 8;
/// Records after which the kernel may use their room again. To tell it of each would cost both sides more than the reading.
const TOGETHER: u64 = 256;

/// A ring buffer, of which this is the only reader.
#[derive(Debug)]
pub struct Ring {
    map: MapData,
    /// Up to where has been read: a page that the kernel reads.
    consumer: Mapping,
    /// Up to where has been written: a page, and after it the data, twice in a row.
    producer: Mapping,
    size: usize,
    page: usize,
    /// Up to where has been read, as far as this knows: ahead of what the kernel was told.
    position: usize,
}

/// What a look at the buffer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Records that were handed on.
    pub count: u64,
    /// Whether nothing was left.
    pub is_empty: bool,
}

impl Ring {
    /// Maps the buffer.
    pub fn new(map: MapData) -> io::Result<Self> {
        // SAFETY: sysconf takes a number and touches nothing.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(io::Error::other)?;
        let size = map.info().map_err(io::Error::other)?.max_entries();
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let fd = map.fd().as_fd();
        let consumer = Mapping::new(fd, page, 0, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = Mapping::new(fd, page + 2 * size, page, libc::PROT_READ)?;
        let position = consumer.position().load(Ordering::Acquire);
        Ok(Self { map, consumer, producer, size, page, position })
    }

    /// Hands records to `take`, at most `most` of them. What comes after the buffer was found empty wakes whoever waits for
    /// the descriptor.
    pub fn read(&mut self, most: u64, mut take: impl FnMut(&[u8])) -> Read {
        let mut count = 0;
        loop {
            let before = self.position;
            let mut told = count;
            // What was written before the position was moved on can be read.
            let end = self.producer.position().load(Ordering::Acquire);
            while self.position != end && count < most {
                // What was written before the record was no longer busy can be read.
                let header = self.header().load(Ordering::Acquire);
                if header & BUSY != 0 {
                    break;
                }
                // A length has 30 bits.
                let length = (header & !(BUSY | DISCARDED)) as usize;
                if header & DISCARDED == 0 {
                    take(self.record(length));
                    count += 1;
                }
                self.position += (HEADER + length).next_multiple_of(HEADER);
                if count - told >= TOGETHER {
                    told = count;
                    self.tell_position();
                }
            }
            self.tell_position();
            if count >= most {
                return Read { count, is_empty: false };
            }
            // The kernel wakes the reader only if it has read all before: either it sees how far this has read by now, or
            // this sees what it has written by now.
            fence(Ordering::SeqCst);
            if self.position == before && !self.has_more() {
                return Read { count, is_empty: true };
            }
        }
    }

    /// Bytes that were taken by records since the buffer was made, and bytes that have been read of them.
    pub fn positions(&self) -> (u64, u64) {
        // In this order, so that the first is never less than the second.
        let read = self.consumer.position().load(Ordering::Acquire);
        (self.producer.position().load(Ordering::Acquire) as u64, read as u64)
    }

    /// Whether there is a record that is not busy.
    fn has_more(&self) -> bool {
        self.position != self.producer.position().load(Ordering::Acquire)
            && self.header().load(Ordering::Acquire) & BUSY == 0
    }

    /// Lets the kernel use the room of what was read.
    fn tell_position(&self) {
        self.consumer.position().store(self.position, Ordering::Release);
    }

    /// The first word of the next record.
    fn header(&self) -> &AtomicU32 {
        // SAFETY: the offset is below the size of the data (a power of two) and a multiple of 8, as records are.
        unsafe { self.next().cast::<AtomicU32>().as_ref() }
    }

    /// The data of the next record, which is not busy.
    fn record(&self, length: usize) -> &[u8] {
        // The kernel has no records that are longer; this keeps within the mapping whatever it says.
        let length = length.min(self.size - HEADER);
        // SAFETY: from an offset below the size on, the data twice in a row have as many bytes; the kernel writes to none of
        // them before it is told that they were read.
        unsafe { std::slice::from_raw_parts(self.next().add(HEADER).as_ptr(), length) }
    }

    fn next(&self) -> NonNull<u8> {
        let offset = self.position & (self.size - 1);
        // SAFETY: the mapping has a page and the data twice, and the offset is below the size of the data.
        unsafe { self.producer.start.add(self.page + offset) }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Memory that is shared with the kernel.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: nothing but this value refers to the mapping, which any thread may use.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, length: usize, offset: usize, access: libc::c_int) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, fd.as_raw_fd(), offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, length })
    }

    /// The first word of the first page.
    fn position(&self) -> &AtomicUsize {
        // SAFETY: a mapping begins at a page and has at least one; both sides use the word in one piece only.
        unsafe { self.start.cast::<AtomicUsize>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this value, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
