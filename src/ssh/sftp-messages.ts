import type ssh2 from 'ssh2'
import { SFTP } from 'ssh2/lib/protocol/SFTP.js'

/** Parses requests of SFTP, which it emits, and writes their replies. `push` takes bytes of the client. */
export type SftpMessages = InstanceType<typeof SFTP>

/**
 * Makes the parser and writer of one SFTP session on a channel. It is the library's own class, which the library would use
 * in place of a channel. It then keeps replies without limit if the client's window is full, and can't hold requests
 * back. A channel does both, so here the class sees a window without end and writes to the channel.
 */
export function makeSftpMessages(channel: ssh2.ServerChannel, clientIdent: string): SftpMessages {
  const protocol = {
    _remoteIdentRaw: clientIdent, // OpenSSH's client swaps the paths of a symlink
    channelData: (_id: number, data: Buffer) => {
      if (channel.writable) channel.write(data)
    },
    channelClose: () => {
      channel.close()
    },
  }
  const side = (): ConstructorParameters<typeof SFTP>[1]['incoming'] => ({ id: 0, window: Infinity, packetSize: Infinity, state: 'open' }) // prettier-ignore
  return new SFTP({ _protocol: protocol }, { type: 'session', incoming: side(), outgoing: side() }, { server: true })
}
