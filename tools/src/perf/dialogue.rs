//! What the two ends say to each other around measurements, on the first endpoint.

use super::failure::{Result, error};
use super::order::{NOTE_LEN, Note};
use super::side::{Queue, Side};

/// Cookie of the messages that are not measured.
const CONTROL: u64 = u64::MAX;

impl Side {
    /// Posts the receive of the next note.
    pub fn expect_note(&self) -> Result<()> {
        self.recv(0, self.map.note_in(), NOTE_LEN as u32, CONTROL)
    }

    /// Sends a note.
    pub fn send_note(&mut self, note: &Note) -> Result<()> {
        let at = self.map.note_out();
        self.bytes(at, NOTE_LEN).copy_from_slice(&note.encode());
        self.send(0, at, NOTE_LEN as u32, CONTROL)?;
        loop {
            // Completions that a measurement has left over are of no use to anybody.
            if self.take(Queue::Request)?.cookie == CONTROL {
                return Ok(());
            }
        }
    }

    /// The next note; its receive is posted.
    pub fn receive_note(&mut self) -> Result<Note> {
        let completion = self.take(Queue::Recv)?;
        let at = self.map.note_in();
        let note = Note::decode(self.bytes(at, NOTE_LEN));
        match note {
            Some(note)
                if completion.cookie == CONTROL && completion.length as usize == NOTE_LEN =>
            {
                Ok(note)
            }
            _ => error("the peer has sent something else than was due"),
        }
    }
}
