/** The part of the library's SFTP class that `sftp-messages.ts` uses. The types of the package don't declare it. */
declare module 'ssh2/lib/protocol/SFTP.js' {
  import type ssh2 from 'ssh2'
  type Side = {
    readonly id: number
    readonly window: number
    readonly packetSize: number
    readonly state: 'open'
  }
  type Protocol = {
    readonly _remoteIdentRaw: string
    channelData(id: number, data: Buffer): void
    channelClose(id: number): void
  }
  export const SFTP: new (
    client: { readonly _protocol: Protocol },
    channel: { readonly type: 'session'; readonly incoming: Side; readonly outgoing: Side },
    options: { readonly server: true },
  ) => ssh2.SFTPWrapper & { push(data: Buffer): void }
}
