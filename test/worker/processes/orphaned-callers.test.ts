import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { systemClock } from '../../../src/lib/clock.ts'
import { makeLog } from '../../../src/lib/log.ts'
import { runCommand } from '../../../src/lib/run-command.ts'
import { makeCommandHelper } from '../../../src/worker/processes/command-helper.ts'
import { endOrphanedCallers } from '../../../src/worker/processes/orphaned-callers.ts'
import { commandLineOf, identifyProcess } from '../../../src/worker/processes/process-identity.ts'
import { SYSTEM_CALLS_SCRIPT } from '../../../src/worker/processes/system-calls.ts'
import { waitUntil } from '../../support/wait.ts'

test('the process that makes system calls for a dead worker is ended, and those of living workers go on', async (t) => {
  const living = makeCommandHelper(makeLog('silent'))
  t.after(() => {
    living.close()
  })
  await living.commands.callSystem(['fifos'])
  // A shell stands for the worker. Its input stays open, as that of a process in the middle of a call would.
  const script = `mkfifo /tmp/$$.in; exec 9<>/tmp/$$.in; rm /tmp/$$.in; perl "$0" serve $$ <&9 & echo $!; wait`
  const worker = spawn('sh', ['-c', script, SYSTEM_CALLS_SCRIPT], { stdio: ['ignore', 'pipe', 'inherit'] })
  const pid = Number(String((await once(worker.stdout, 'data'))[0]))
  await waitUntil(() => commandLineOf(pid)[0] === 'perl', 5_000) // the shell has become Perl
  await endOrphanedCallers(systemClock)
  assert.notEqual(identifyProcess(pid), null, 'its worker lives')
  process.kill(pid, 'SIGSTOP')
  worker.kill('SIGKILL')
  await once(worker, 'exit')
  await endOrphanedCallers(systemClock)
  assert.equal(identifyProcess(pid), null)
  await living.commands.callSystem(['fifos'])
})

test('a disk is copied while other workers start', async (t) => {
  if (process.getuid?.() !== 0) {
    t.skip('mounts need root')
    return
  }
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-orphans-'))
  const [image, point] = [join(folder, 'disk.img'), join(folder, 'disk')]
  const helper = makeCommandHelper(makeLog('silent'))
  t.after(async () => {
    helper.close()
    await runCommand('umount', [point], { timeoutMs: 10_000 })
    rmSync(folder, { recursive: true })
  })
  mkdirSync(point)
  writeFileSync(image, '')
  truncateSync(image, 16 * 1024 * 1024)
  await runCommand('mkfs.ext4', ['-q', '-F', image], { timeoutMs: 10_000 })
  await helper.commands.callSystem(['disk', image, point, '100000'])
  let isOver = false
  const starts = (async () => {
    while (!isOver) await endOrphanedCallers(systemClock)
  })()
  try {
    for (let n = 0; n < 10; n++) await helper.commands.callSystem(['snapshot', image, point, join(folder, String(n))])
  } finally {
    isOver = true
    await starts
  }
})
