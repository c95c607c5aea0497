//! How an attempt connects over TCP, before the request.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::descriptor::OwnedFd;
use crate::kernel;
use crate::kernel::net::sockopt;
use rustix::io::Errno;

use super::{Connector, Progress, Stage, State, unwatched};
use crate::device::CmEvent;
use crate::device::soft::cm::error::ConnectError;
use crate::device::soft::engine::{EventFlags, Watch};
use crate::device::soft::socket;

impl Connector {
    /// Begins a TCP connection to the current candidate.
    pub(super) fn connect_tcp(self: &Arc<Self>, state: &mut State, target: SocketAddr) -> Progress {
        let fd = match self.tcp_socket(target, state.socket.take()) {
            Ok(fd) => fd,
            Err(error) => return self.tcp_failed(state, error),
        };
        match kernel::net::connect(&fd, &target) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            // A port is chosen here, so that this is no error of the address, as it is where the socket is bound.
            Err(error @ Errno::ADDRNOTAVAIL) => return self.no_local_port(state, error),
            Err(error) => return self.tcp_failed(state, error),
        }
        state.local_port = socket::local(&fd).map(|local| local.port());
        match self.device.engine.watch(fd, EventFlags::OUT, self.clone()) {
            Ok(watch) => state.stage = Stage::Connecting(watch),
            Err(_) => return unwatched(),
        }
        Progress::Wait
    }

    /// A socket for a TCP connection: `socket` if there is one.
    fn tcp_socket(&self, target: SocketAddr, socket: Option<OwnedFd>) -> Result<OwnedFd, Errno> {
        let fd = match socket {
            Some(fd) => fd,
            None => socket::tcp(target.is_ipv6())?,
        };
        socket::tune(&fd, &self.device.params);
        socket::limit_set_up(&fd, Some(self.device.params.timeout));
        // The local port stays a qualifier that can be listened on, now and in the minute after
        // the end of the connection.
        let _ = sockopt::set_socket_reuseaddr(&fd, true);
        let own = self.device.params.address;
        if self.device.params.bound && own.is_ipv4() == target.is_ipv4() {
            socket::bind_address(&fd, own)?;
        }
        Ok(fd)
    }

    /// All local ports are taken for the moment.
    fn no_local_port(self: &Arc<Self>, state: &mut State, error: Errno) -> Progress {
        state.failure.get_or_insert(ConnectError::System(error));
        self.try_next(state)
    }

    /// There is no TCP connection to the current candidate.
    pub(super) fn tcp_failed(self: &Arc<Self>, state: &mut State, error: Errno) -> Progress {
        match error {
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN | Errno::TIMEDOUT => {
                Progress::Failed(CmEvent::Unreachable, ConnectError::System(error))
            }
            Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => {
                Progress::Failed(CmEvent::Unreachable, ConnectError::System(error))
            }
            Errno::CONNREFUSED => self.try_next(state),
            // Of a system that chooses a port where the socket is bound.
            Errno::ADDRINUSE => self.no_local_port(state, error),
            _ => self.try_next_port(state, ConnectError::System(error)),
        }
    }

    /// TCP has connected, or has failed to.
    pub(super) fn tcp_connected(self: &Arc<Self>, state: &mut State, watch: Watch) -> Progress {
        match sockopt::socket_error(&watch) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => return self.tcp_failed(state, error),
        }
        // Without a listener TCP may connect a port to itself.
        match (socket::local(&watch), socket::remote(&watch)) {
            (Some(local), Some(remote)) if local != remote => self.begin_request(state, watch),
            _ => self.try_next(state),
        }
    }
}
