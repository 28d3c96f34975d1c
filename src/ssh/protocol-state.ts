import { createSecretKey } from 'node:crypto'
import type ssh2 from 'ssh2'

/**
 * What the library knows about the protocol of a connection, and tells nobody (`lib/protocol/Protocol.js` and `crypto.js` of ssh2
 * 1.17).
 */

export function isExchangingKeys(connection: ssh2.Connection): boolean {
  return read(read(connection, '_protocol'), '_kexinit') !== undefined
}

/** How many packets the client has sent, modulo 2³². New keys may begin it anew. */
export function countReceived(connection: ssh2.Connection): number {
  const received = read(read(read(connection, '_protocol'), '_decipher'), 'inSeqno')
  return typeof received === 'number' ? received : 0
}

/** Where the library keeps the keys of its ciphers. */
const KEYS = ['_encKey', '_encKeyMain', '_encKeyPktLen', '_decKey', '_decKeyMain', '_decKeyPktLen', '_macKey']

/**
 * Keeps the keys of a connection as key objects. Call it after each key exchange. The library makes ciphers for each packet, and Node 24.21
 * takes 12 µs to make one with bytes as its key, 1 to 2 with an object. 200 MiB by the cipher that OpenSSH prefers took
 * 535 ms of CPU time instead of 905.
 */
export function keepKeysAsObjects(connection: ssh2.Connection | ssh2.Client): void {
  const protocol = read(connection, '_protocol')
  for (const cipher of [read(protocol, '_cipher'), read(protocol, '_decipher')])
    for (const name of KEYS) {
      const key = read(cipher, name)
      if (Buffer.isBuffer(key)) Object.assign(Object(cipher), { [name]: createSecretKey(key) })
    }
}

function read(of: unknown, name: string): unknown {
  return typeof of === 'object' && of !== null ? Reflect.get(of, name) : undefined
}
