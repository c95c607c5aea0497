//! Where the figures are shown: a terminal that is drawn anew in each round, or lines one after the
//! other.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What ends the wait for the next round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The time is over, or the terminal has another size.
    Round,
    /// The user ends the program.
    End,
}

/// Signals that end the program, or change what it shows.
const SIGNALS: [libc::c_int; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Rows and columns of a terminal that does not say.
const SIZE: (usize, usize) = (24, 80);

/// The most bytes that a pipe takes without waiting when it says that it takes some.
const PIECE: usize = libc::PIPE_BUF;

/// Where the figures are shown.
pub struct Screen {
    signals: OwnedFd,
    /// Standard output, without a buffer.
    out: File,
    /// The mode of the terminal before, if the figures are shown on one.
    terminal: Option<libc::termios>,
}

impl Screen {
    /// Takes the terminal, if standard output and standard input are one and `redraws`.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn open(redraws: bool) -> io::Result<Screen> {
        // SAFETY: a set that is filled before it is used, and numbers.
        let signals = unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&mut set);
            for signal in SIGNALS {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if signals < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which is ours.
        let signals = unsafe { OwnedFd::from_raw_fd(signals) };
        let both = io::stdout().is_terminal() && io::stdin().is_terminal();
        let mut screen = Screen {
            signals,
            out: io::stdout().as_fd().try_clone_to_owned()?.into(),
            terminal: None,
        };
        if redraws && both {
            screen.terminal = mode();
            screen.set_mode();
        }
        Ok(screen)
    }

    /// Keys are read one by one and not shown.
    fn set_mode(&self) {
        if let Some(mut mode) = self.terminal {
            mode.c_lflag &= !(libc::ICANON | libc::ECHO);
            // SAFETY: a mode that was read before.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &mode) };
        }
    }

    /// The rows of a terminal; `None` for lines without end.
    pub fn rows(&self) -> Option<usize> {
        self.terminal.map(|_| size().0)
    }

    /// Shows a text; `None` if nobody reads any more, or the user ends the program. It does so while a reader takes
    /// nothing, too: the signals are blocked, so that no write may wait.
    ///
    /// # Errors
    /// Why standard output takes nothing, such as a full disk.
    pub fn show(&mut self, text: &str) -> io::Result<Option<()>> {
        let drawn = match self.terminal {
            Some(_) => draw(text, size()),
            None => text.to_owned(),
        };
        let mut left = drawn.as_bytes();
        while !left.is_empty() {
            let (signal, takes) = self.poll(self.out.as_raw_fd(), libc::POLLOUT, -1);
            if let Some(Next::End) = signal {
                return Ok(None);
            }
            if !takes {
                continue;
            }
            match self.out.write(&left[..left.len().min(PIECE)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted | ErrorKind::WouldBlock => {}
                    ErrorKind::BrokenPipe => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
        Ok(Some(()))
    }

    /// Waits for the next round, until the user ends the program.
    pub fn wait(&mut self, time: Duration) -> Next {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let keys = match self.terminal {
                Some(_) => libc::STDIN_FILENO,
                // Left out by poll(2).
                None => -1,
            };
            let milliseconds = left.as_nanos().div_ceil(1_000_000);
            let timeout = libc::c_int::try_from(milliseconds).unwrap_or(libc::c_int::MAX);
            let (signal, pressed) = self.poll(keys, libc::POLLIN, timeout);
            if let Some(next) = signal {
                return next;
            }
            if pressed && ends(key()) {
                return Next::End;
            }
            if left.is_zero() {
                return Next::Round;
            }
        }
    }

    /// Waits until a descriptor is ready for `events`, a signal has come or the time is over, -1 for no limit. Gives
    /// what follows from the signal, and whether the descriptor is ready.
    fn poll(&self, other: RawFd, events: i16, timeout: libc::c_int) -> (Option<Next>, bool) {
        let polled = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut both = [
            polled(self.signals.as_raw_fd(), libc::POLLIN),
            polled(other, events),
        ];
        // SAFETY: two entries.
        unsafe { libc::poll(both.as_mut_ptr(), 2, timeout) };
        let signal = match both[0].revents {
            0 => None,
            _ => self.signal(),
        };
        let next = signal.map(|signal| match signal {
            libc::SIGWINCH | libc::SIGCONT => {
                self.set_mode();
                Next::Round
            }
            _ => Next::End,
        });
        (next, both[1].revents != 0)
    }

    /// The next signal.
    fn signal(&self) -> Option<libc::c_int> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let len = size_of::<libc::signalfd_siginfo>();
        let fd = self.signals.as_raw_fd();
        // SAFETY: room for one entry, which is whole if its length was read.
        unsafe {
            if libc::read(fd, info.as_mut_ptr().cast(), len) != len as isize {
                return None;
            }
            Some(info.assume_init().ssi_signo as libc::c_int)
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(mode) = self.terminal {
            // SAFETY: the mode from before.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSADRAIN, &mode) };
        }
    }
}

/// A key, or the end of the input.
fn key() -> Option<u8> {
    let mut byte = 0u8;
    // SAFETY: room for one byte.
    let read = unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) };
    (read == 1).then_some(byte)
}

/// Whether a key, or the end of the input, ends the program.
fn ends(key: Option<u8>) -> bool {
    matches!(key, None | Some(b'q' | b'Q' | 3 | 4))
}

/// The mode of the terminal at standard input.
fn mode() -> Option<libc::termios> {
    let mut mode = MaybeUninit::uninit();
    // SAFETY: a place for the mode, which is filled if the call succeeds.
    unsafe {
        match libc::tcgetattr(libc::STDIN_FILENO, mode.as_mut_ptr()) {
            0 => Some(mode.assume_init()),
            _ => None,
        }
    }
}

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    // SAFETY: zeros are a value of the type, which the call fills.
    let size = unsafe {
        let mut size: libc::winsize = zeroed();
        libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        size
    };
    match (size.ws_row, size.ws_col) {
        (0, _) | (_, 0) => SIZE,
        (rows, columns) => (rows.into(), columns.into()),
    }
}

/// A text as it replaces what a terminal shows: its lines, cut at the columns and at the rows.
fn draw(text: &str, (rows, columns): (usize, usize)) -> String {
    let mut drawn = String::from("\x1b[H");
    let lines = text.lines().take(rows.saturating_sub(1));
    for line in lines {
        drawn.extend(line.chars().take(columns));
        // The rest of the line, and the next one.
        drawn.push_str("\x1b[K\r\n");
    }
    drawn.push_str("\x1b[J");
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_what_fits() {
        let drawn = draw("abc\ndefgh\nij\n", (3, 4));
        assert_eq!(drawn, "\x1b[Habc\x1b[K\r\ndefg\x1b[K\r\n\x1b[J");
    }
}
