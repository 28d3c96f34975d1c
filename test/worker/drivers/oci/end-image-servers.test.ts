import assert from 'node:assert/strict'
import { test } from 'node:test'
import { asId, type RunId } from '../../../../src/domain/ids.ts'
import type { Mount } from '../../../../src/domain/spec/spec.ts'
import { localCommands } from '../../../../src/lib/run-command.ts'
import { endImageServers } from '../../../../src/worker/drivers/oci/run/end-image-servers.ts'
import { diskImage, tmpfs } from '../../../support/mounts.ts'
import { DEFAULT_SPEC_FOR_TESTS } from '../../../support/spec.ts'

/** Waits for servers of which `pids` lists one fewer at each call. Returns what was logged, and the time that passed. */
async function end(mounts: readonly Mount[], pids: () => readonly number[]): Promise<[string[], number]> {
  const logged: string[] = []
  let nowMs = 0
  const clock = {
    now: () => new Date(0),
    monotonicMs: () => nowMs,
    sleep: (ms: number) => {
      nowMs += ms
      return Promise.resolve()
    },
  }
  const ignore = (): void => undefined
  const warn = (_fields: object, message: string): void => void logged.push(message)
  const log = { debug: ignore, info: ignore, warn, error: ignore, child: () => log }
  const cgroups = { commandPids: () => Promise.resolve(pids()) }
  const run = { run_id: asId<RunId>('run'), spec: { ...DEFAULT_SPEC_FOR_TESTS, mounts } }
  await endImageServers({ cgroups, clock, commands: localCommands, log, mountDir: '/nonexistent' }, run)
  return [logged, nowMs]
}

test('the end of a run waits until the servers of its images have written everything', async () => {
  let left = 3
  const [logged, passedMs] = await end([diskImage('d.img', '/disk')], () => Array.from({ length: left-- }, () => 1))
  assert.deepEqual(logged, [])
  assert.ok(passedMs > 0 && passedMs < 100, String(passedMs))
})

test('a server that does not end delays the end of its run by ten seconds at most, and the log says so', async () => {
  const [logged, passedMs] = await end([diskImage('d.img', '/disk')], () => [1])
  assert.match(logged.join(), /^the server of a disk image does not end; it is killed/)
  assert.ok(passedMs >= 10_000 && passedMs < 11_000, String(passedMs))
})

test('a run without disk images waits for nothing', async () => {
  assert.deepEqual(await end([tmpfs('/tmp')], () => [1]), [[], 0])
})
