import type { Socket } from 'node:net'
import type ssh2 from 'ssh2'
import type { ChannelClient } from '../channel-client/channel-client.ts'
import { CHANNEL_ENDS, type ChannelEnd } from '../contract/sandboxes/channel-ends.ts'
import type { SshPermits } from '../domain/orgs/ssh-certificate.ts'
import type { Log } from '../lib/log.ts'
import type { Semaphore } from '../lib/turns/semaphore.ts'
import type { LimitInput } from './input-limits.ts'

/** What the sessions of one SSH connection share. */
export type SshConnection = {
  readonly connection: ssh2.Connection
  readonly socket: Socket
  /** The first line of the client, which names its program. */
  readonly ident: string
  readonly limitInput: LimitInput
  /** How many SFTP sessions there may be. */
  readonly sftpSessions: Semaphore
  readonly permits: SshPermits
  /** The channel to the sandbox, which the first session opens. Rejects with the reason, for the person at the client. */
  client(): Promise<ChannelClient>
  /**
   * The path in the sandbox of the socket that leads to the agent of the client. Null if the sandbox doesn't allow it. Rejects
   * with the reason why there is none.
   */
  agentSocket(): Promise<string | null>
  /** Resolves when what the client asked for so far listens in the sandbox, or was refused. Commands may rely on it. Never rejects. */
  forwardsSettled(): Promise<unknown>
  /** Aborted when the connection is closed. */
  readonly closed: AbortSignal
  readonly log: Log
}

/** Describes why a channel ended, for the person at the SSH client. */
export function describeEnd(why: ChannelEnd): string {
  return why === 'api_key_revoked' ? 'the SSH key was removed' : CHANNEL_ENDS[why].reason
}
