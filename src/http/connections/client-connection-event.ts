import type { Server } from 'node:http'
import { Server as TlsServer } from 'node:tls'

/**
 * The event with the sockets on which requests arrive. With TLS, `connection` has the sockets beneath them, whose
 * handshake has not begun.
 */
export function clientConnectionEvent(server: Server): 'connection' | 'secureConnection' {
  return server instanceof TlsServer ? 'secureConnection' : 'connection'
}
