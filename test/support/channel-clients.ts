import { duplexPair } from 'node:stream'
import type { Duplex } from 'node:stream'
import { startChannelClient, type ChannelClient } from '../../src/channel-client/channel-client.ts'
import { asId, type SandboxId } from '../../src/domain/ids.ts'
import { makeLog } from '../../src/lib/log.ts'
import { systemClock } from '../../src/lib/clock.ts'
import { makePiecePacer } from '../../src/lib/turns/piece-pacer.ts'
import type { Guest } from '../../src/worker/channel/guest.ts'
import { serveChannel } from '../../src/worker/channel/serve-channel.ts'
import { makeNoLogs } from '../../src/worker/logs/logs.ts'

/** A channel client whose channel is served in this process. */
export type ServedClient = {
  readonly client: ChannelClient
  /** The bytes between the two. Destroy it to lose the worker. */
  readonly wire: Duplex
  /** Resolves when the served side has released everything. */
  readonly over: Promise<void>
}

/** Serves `guest` over a channel and connects a client to it. */
export async function serveClient(guest: Guest): Promise<ServedClient> {
  const [ours, theirs] = duplexPair()
  const over = serveChannel(theirs, guest, {
    clock: systemClock,
    log: makeLog('silent'),
    limits: { sessions: 256 },
    pace: makePiecePacer().paceOf('org'),
    agentVersion: 'test',
    onActivity: () => undefined,
    onProcess: () => () => undefined,
    capture: makeNoLogs().writerOf(asId<SandboxId>('box')),
  })
  const client = startChannelClient(ours, { whyClosed: () => 'worker_lost', pace: makePiecePacer().paceOf('org') })
  void client.closed.then(() => theirs.destroy())
  await client.ready
  return { client, wire: theirs, over }
}
