import assert from 'node:assert/strict'
import { lstatSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { makeLog } from '../../../src/lib/log.ts'
import { CommandError, runCommand } from '../../../src/lib/run-command.ts'
import { makeCommandHelper } from '../../../src/worker/processes/command-helper.ts'
import { SYSTEM_CALLS_SCRIPT } from '../../../src/worker/processes/system-calls.ts'
import { waitUntil } from '../../support/wait.ts'

const folder = mkdtempSync(`${tmpdir()}/sandyard-callers-`)
const LIMIT = { timeoutMs: 10_000 }
const helper = makeCommandHelper(makeLog('silent'))
const { commands } = helper
after(() => {
  helper.close()
  rmSync(folder, { recursive: true })
})

/** The ids of the helper processes that make system calls for this test. */
function callers(): readonly number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isCaller(name))
    .map(Number)
}

function isCaller(pid: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').endsWith(
      `${SYSTEM_CALLS_SCRIPT}\0serve\0${String(process.pid)}\0`,
    )
  } catch {
    return false // it ended meanwhile
  }
}

test('a call that hangs is killed when its time is over, and a new process makes the next one', async () => {
  await commands.callSystem(['fifos', join(folder, 'first')])
  const before = callers()
  assert.equal(before.length, 1)
  for (const pid of before) process.kill(pid, 'SIGSTOP')
  await assert.rejects(commands.callSystem(['fifos', join(folder, 'late')], { timeoutMs: 200 }), CommandError)
  await commands.callSystem(['fifos', join(folder, 'next')])
  assert.ok(statSync(join(folder, 'next')).isFIFO())
  assert.equal(lstatSync(join(folder, 'late'), { throwIfNoEntry: false }), undefined)
  assert.ok(callers().every((pid) => !before.includes(pid)))
})

test('while their processes are killed, networks are complete or refused, and never set up in the machine itself', async (t) => {
  if (process.getuid?.() !== 0) {
    t.skip('network namespaces need root')
    return
  }
  const own = statSync('/proc/self/ns/net').ino
  const router = `sy-kill-${String(process.pid)}`
  const names = Array.from({ length: 40 }, (_, n) => `${router}-${String(n)}`)
  await runCommand('ip', ['netns', 'add', router], LIMIT)
  t.after(async () => {
    for (const name of readdirSync('/run/netns').filter((name) => name === router || names.includes(name)))
      await runCommand('ip', ['netns', 'delete', name], LIMIT)
  })
  let isOver = false
  let seen = 0
  const made = Promise.allSettled(
    names.map((name, n) => {
      const [device, gateway, address] = [`v${String(n)}`, `198.18.${String(n)}.1`, `198.18.${String(n)}.2`]
      const call = ['network', `/run/netns/${name}`, `/run/netns/${router}`, device, gateway, address, '30'] as const
      return commands.callSystem(call, LIMIT)
    }),
  ).finally(() => {
    isOver = true
  })
  await waitUntil(() => {
    // Once four more calls have begun, some of the helper processes are in the middle of a call, so killing them is
    // effective.
    const count = readdirSync('/run/netns').filter((name) => names.includes(name)).length
    if (count < seen + 4) return isOver
    seen = count
    for (const pid of callers()) process.kill(pid, 'SIGKILL')
    return isOver
  }, 30_000)
  const ends = await made
  assert.ok(ends.some(({ status }) => status === 'rejected'))
  for (const [n, { status }] of ends.entries()) {
    if (status === 'rejected') continue
    const { stdout } = await runCommand('ip', ['-n', names[n] ?? '', '-o', 'route'], LIMIT)
    assert.match(stdout, new RegExp(`default via 198\\.18\\.${String(n)}\\.1 `))
  }
  await commands.callSystem(['network', `/run/netns/${router}-last`])
  names.push(`${router}-last`)
  assert.notEqual(statSync(`/run/netns/${router}-last`).ino, own)
  const { stdout } = await runCommand('ip', ['-o', 'link'], LIMIT)
  assert.doesNotMatch(stdout, /\bv\d+@/)
  assert.ok(callers().every((pid) => readlinkSync(`/proc/${String(pid)}/ns/net`) === `net:[${String(own)}]`))
})
