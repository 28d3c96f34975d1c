import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import type { ChannelClient } from '../../src/channel-client/channel-client.ts'
import { systemRandom } from '../../src/lib/random.ts'
import { listenInSandbox, ListenFailure, type Incoming } from '../../src/ssh/sandbox-listener.ts'
import { findSandboxUser } from '../../src/ssh/sandbox-user.ts'
import { serveClient } from '../support/channel-clients.ts'
import { isAlive, makeLocalGuest } from '../support/local-guest.ts'
import { waitUntil } from '../support/wait.ts'

// What a sandbox does to the SSH server: its programs print anything, and may never end.

const NEVER = new AbortController().signal

/** A client of a sandbox in which every program is a shell with this script. */
async function enter(
  t: TestContext,
  script: string,
): Promise<{ readonly client: ChannelClient; readonly pid: () => number }> {
  const guest = makeLocalGuest()
  let pid = 0
  const served = await serveClient({
    ...guest,
    async exec(request) {
      const process = await guest.exec({ ...request, cmd: '/bin/sh', args: ['-c', script] })
      pid = process.pid
      return process
    },
  })
  t.after(async () => {
    served.client.close()
    await served.over
  })
  return { client: served.client, pid: () => pid }
}

test('a listener’s line is read up to 4,096 characters', async (t) => {
  const { client } = await enter(t, 'printf "failed "; head -c 1000000 /dev/zero | tr "\\0" x; echo; cat')
  await assert.rejects(
    listenInSandbox({ client, random: systemRandom }, { kind: 'agent' }, () => undefined),
    (error) => error instanceof ListenFailure && error.message === 'x'.repeat(4096 - 'failed '.length),
  )
})

test('a listener that tells of connections and doesn’t read gets no more refusals than it takes', async (t) => {
  const incoming: Incoming[] = []
  const { client } = await enter(
    t,
    'echo listening path 1; i=0; while [ $i -lt 3 ]; do echo open $i; i=$((i+1)); done; sleep 600',
  )
  let written = 0
  const noting: ChannelClient = {
    ...client,
    exec(request) {
      const process = client.exec(request)
      process.stdin.cork() // nothing is taken from here on
      const write = process.stdin.write.bind(process.stdin)
      process.stdin.write = (text: string) => {
        written += text.length
        return write(text)
      }
      return process
    },
  }
  await listenInSandbox({ client: noting, random: systemRandom }, { kind: 'agent' }, (one) => void incoming.push(one))
  await waitUntil(() => incoming.length === 3)
  for (let n = 0; n < 100_000; n++) incoming[n % 3]?.refuse()
  assert.ok(written < 100_000, String(written))
})

test('the user of a sandbox is read from three lines, whatever else its shell prints', async (t) => {
  const { client } = await enter(t, 'echo 7; echo 8; echo /home/me; head -c 5000000 /dev/zero; yes | head -c 5000000')
  assert.deepEqual(await findSandboxUser(client, NEVER), { user: '7:8', folder: '/home/me' })
})

test('a shell that prints without end is killed at the time limit', async (t) => {
  const { client, pid } = await enter(t, 'yes')
  const limit = new AbortController()
  const found = findSandboxUser(client, limit.signal)
  await waitUntil(() => pid() > 0)
  limit.abort()
  await assert.rejects(found, /the shell of the sandbox did not answer/)
  await waitUntil(() => !isAlive(-pid()))
})
