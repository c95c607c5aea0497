// SPDX-License-Identifier: MIT OR Apache-2.0
//
// hello2.c in C++17: a server and a client in one program, which connect and send one message. The class
// Handle frees an object of DAT at the end of its scope, in the reverse order of the declarations; it and
// the functions above main are small enough to be copied.
//
// Build: c++ -std=c++17 -Wall -Wextra -o hello hello.cpp $(pkg-config --cflags --libs dat2)
// Run:   ./hello [IA]           the interface adapter is "soft" by default; dat-info lists them

#include <array>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>

#include <dat2/udat.h>

// Of every wait, in microseconds.
constexpr DAT_TIMEOUT TIMEOUT = 10'000'000;

// A code that is not DAT_SUCCESS, in words.
struct Error : std::runtime_error {
	Error(DAT_RETURN code, const std::string &what)
	    : std::runtime_error(what + ": " + text(code))
	{
	}

	static std::string text(DAT_RETURN code)
	{
		const char *major = "?", *minor = "";

		dat_strerror(code, &major, &minor);
		return std::string(major) + " " + minor;
	}
};

void check(DAT_RETURN code, const std::string &what)
{
	if (code != DAT_SUCCESS)
		throw Error(code, what);
}

// The only owner of an object, which the function `free` frees.
template <typename H, DAT_RETURN (*free)(H)> class Handle
{
      public:
	Handle() = default;
	explicit Handle(H handle) : handle_(handle)
	{
	}
	Handle(Handle &&other) noexcept : handle_(std::exchange(other.handle_, H{}))
	{
	}
	Handle &operator=(Handle &&other) noexcept
	{
		std::swap(handle_, other.handle_);
		return *this;
	}
	~Handle()
	{
		if (handle_ != H{})
			free(handle_);
	}
	operator H() const
	{
		return handle_;
	}
	// For a function that makes the object; there must be none yet.
	H *out()
	{
		return &handle_;
	}

      private:
	H handle_{};
};

DAT_RETURN close_ia(DAT_IA_HANDLE ia)
{
	return dat_ia_close(ia, DAT_CLOSE_ABRUPT_FLAG);
}

using Ia = Handle<DAT_IA_HANDLE, close_ia>;
using Pz = Handle<DAT_PZ_HANDLE, dat_pz_free>;
using Evd = Handle<DAT_EVD_HANDLE, dat_evd_free>;
using Ep = Handle<DAT_EP_HANDLE, dat_ep_free>;
using Psp = Handle<DAT_PSP_HANDLE, dat_psp_free>;
using Lmr = Handle<DAT_LMR_HANDLE, dat_lmr_free>;

Evd make_evd(const Ia &ia, int flags)
{
	Evd evd;

	check(dat_evd_create(ia, 8, DAT_HANDLE_NULL, static_cast<DAT_EVD_FLAGS>(flags), evd.out()),
	      "dat_evd_create");
	return evd;
}

// The next event of an EVD, which has to be this one.
DAT_EVENT wait_for(const Evd &evd, DAT_EVENT_NUMBER number, const std::string &what)
{
	DAT_EVENT event;
	DAT_COUNT more;

	check(dat_evd_wait(evd, TIMEOUT, 1, &event, &more), what);
	if (event.event_number != number)
		throw std::runtime_error(what + ": event " + std::to_string(event.event_number));
	return event;
}

// The completion of a request or receive: its number of bytes.
std::size_t completion(const Evd &evd, const std::string &what)
{
	const DAT_EVENT event = wait_for(evd, DAT_DTO_COMPLETION_EVENT, what);
	const auto &dto = event.event_data.dto_completion_event_data;

	if (dto.status != DAT_DTO_SUCCESS)
		throw std::runtime_error(what + ": status " + std::to_string(dto.status));
	return dto.transfered_length;
}

// One end of the connection, with a registered buffer.
struct Side {
	Evd data, connection;
	Lmr lmr;
	Ep ep;
	std::array<char, 64> buffer{};
	DAT_LMR_TRIPLET segment{};

	Side(const Ia &ia, const Pz &pz)
	    : data(make_evd(ia, DAT_EVD_DTO_FLAG)),
	      connection(make_evd(ia, DAT_EVD_CONNECTION_FLAG))
	{
		DAT_REGION_DESCRIPTION region;

		region.for_va = buffer.data();
		check(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, buffer.size(), pz,
				     static_cast<DAT_MEM_PRIV_FLAGS>(DAT_MEM_PRIV_LOCAL_READ_FLAG |
								     DAT_MEM_PRIV_LOCAL_WRITE_FLAG),
				     DAT_VA_TYPE_VA, lmr.out(), &segment.lmr_context, nullptr,
				     nullptr, nullptr),
		      "dat_lmr_create");
		check(dat_ep_create(ia, pz, data, data, connection, nullptr, ep.out()),
		      "dat_ep_create");
		segment.virtual_address = reinterpret_cast<std::uintptr_t>(buffer.data());
		segment.segment_length = static_cast<DAT_SEG_LENGTH>(buffer.size());
	}
	// The buffer is registered where it is.
	Side(const Side &) = delete;
};

void hello(std::string name)
{
	Ia ia;
	Pz pz;
	DAT_IA_ATTR attr;
	DAT_EVD_HANDLE async = DAT_HANDLE_NULL;
	DAT_DTO_COOKIE cookie{};

	check(dat_ia_open(name.data(), 8, &async, ia.out()), name);
	check(dat_ia_query(ia, nullptr, DAT_IA_FIELD_ALL, &attr, 0, nullptr), "dat_ia_query");
	check(dat_pz_create(ia, pz.out()), "dat_pz_create");
	Side client(ia, pz), server(ia, pz);

	// The server listens, and has a receive for the message; the client connects.
	Evd requests = make_evd(ia, DAT_EVD_CR_FLAG);
	Psp psp;
	DAT_CONN_QUAL qualifier;
	check(dat_psp_create_any(ia, &qualifier, requests, DAT_PSP_CONSUMER_FLAG, psp.out()),
	      "dat_psp_create_any");
	check(dat_ep_post_recv(server.ep, 1, &server.segment, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_recv");
	check(dat_ep_connect(client.ep, attr.ia_address_ptr, qualifier, TIMEOUT, 0, nullptr,
			     DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG),
	      "dat_ep_connect");
	const DAT_EVENT request =
		wait_for(requests, DAT_CONNECTION_REQUEST_EVENT, "connection request");
	check(dat_cr_accept(request.event_data.cr_arrival_event_data.cr_handle, server.ep, 0,
			    nullptr),
	      "dat_cr_accept");
	wait_for(client.connection, DAT_CONNECTION_EVENT_ESTABLISHED, "connection of the client");
	wait_for(server.connection, DAT_CONNECTION_EVENT_ESTABLISHED, "connection of the server");

	// One message.
	const std::string text = "hello from the client";
	std::memcpy(client.buffer.data(), text.c_str(), text.size() + 1);
	client.segment.segment_length = static_cast<DAT_SEG_LENGTH>(text.size() + 1);
	check(dat_ep_post_send(client.ep, 1, &client.segment, cookie, DAT_COMPLETION_DEFAULT_FLAG),
	      "dat_ep_post_send");
	completion(client.data, "send");
	std::cout << completion(server.data, "receive") << " bytes have arrived: ";
	std::cout << server.buffer.data() << std::endl;

	// The connection ends here; everything is freed at the end of the scope.
	check(dat_ep_disconnect(client.ep, DAT_CLOSE_GRACEFUL_FLAG), "dat_ep_disconnect");
	wait_for(client.connection, DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
	wait_for(server.connection, DAT_CONNECTION_EVENT_DISCONNECTED, "end of the connection");
}

int main(int argc, char **argv)
{
	try {
		hello(argc > 1 ? argv[1] : "soft");
	} catch (const std::exception &error) {
		std::cerr << "hello: " << error.what() << std::endl;
		return 1;
	}
	return 0;
}
