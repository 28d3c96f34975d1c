import assert from 'node:assert/strict'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { test } from 'node:test'
import { CommandError, runCommand, type CommandRunner } from '../../../../src/lib/run-command.ts'
import { localHostCommands } from '../../../../src/worker/processes/system-calls.ts'
import { networkNames } from '../../../../src/worker/network/network-names.ts'
import { makeRouterRules } from '../../../../src/worker/network/rules/router-rules.ts'
import { waitUntil } from '../../../support/wait.ts'

const LIMIT = { timeoutMs: 10_000 }
const CURRENT = { isCurrent: () => true }

test('a change that arrives as the last one completes is applied too', async () => {
  let count = 0
  const run: CommandRunner['run'] = () => Promise.resolve({ code: 0, stdout: String(++count), stderr: '' })
  const rules = makeRouterRules(networkNames('rules', { ...localHostCommands, run }))
  // The deeper the chain of promises, the later a caller sees the result and applies another change.
  const ask = (depth: number): Promise<void> => (depth === 0 ? rules.apply(['add table inet t']) : askAbove(depth))
  const askAbove = async (depth: number): Promise<void> => {
    await ask(depth - 1)
  }
  for (let depth = 0; depth < 12; depth++) {
    let isOver = false
    const asked = ask(depth)
      .then(() => ask(0))
      .then(() => {
        isOver = true
      })
    await waitUntil(() => isOver)
    await asked
  }
  assert.equal(count, 24)
})

test('a sandbox with many large changes delays those of others by one of them', async () => {
  const inputs: string[] = []
  const run: CommandRunner['run'] = async (_file, _args, { input = '' }) => {
    inputs.push(String(input).slice(0, 1))
    await nextTurn()
    return { code: 0, stdout: '', stderr: '' }
  }
  const rules = makeRouterRules(networkNames('rules', { ...localHostCommands, run }))
  const large = Array.from({ length: 32 }, () => rules.applyFor('noisy', { ...CURRENT, lines: ['n'.repeat(40_000)] }))
  await Promise.all([rules.apply(['s']), rules.applyFor('quiet', { ...CURRENT, lines: ['q'] })])
  assert.ok(inputs.length <= 4, inputs.join(' '))
  await Promise.all(large)
  assert.equal(inputs.filter((input) => input === 'n').length, 32)
})

test('a change that waits while its sandbox gets other rules is not applied', async () => {
  const inputs: string[] = []
  const run: CommandRunner['run'] = async (_file, _args, { input = '' }) => {
    inputs.push(String(input).trim())
    await nextTurn()
    return { code: 0, stdout: '', stderr: '' }
  }
  const rules = makeRouterRules(networkNames('rules', { ...localHostCommands, run }))
  let isCurrent = true
  const first = rules.applyFor('a', { lines: ['first'], isCurrent: () => isCurrent })
  await waitUntil(() => inputs.length === 1)
  const second = rules.applyFor('a', { lines: ['second'], isCurrent: () => isCurrent })
  isCurrent = false
  await first
  await assert.rejects(second, /other rules/)
  assert.deepEqual(inputs, ['first'])
})

test('small changes of a sandbox are applied together, and each is told alone whether it was refused', async () => {
  const sizes: number[] = []
  const run: CommandRunner['run'] = async (_file, _args, { input = '' }) => {
    const lines = String(input).trim().split('\n')
    sizes.push(lines.length)
    await nextTurn()
    if (lines.includes('bad')) throw new CommandError('nft', [], { code: 1, stdout: '', stderr: 'refused' })
    return { code: 0, stdout: '', stderr: '' }
  }
  const rules = makeRouterRules(networkNames('rules', { ...localHostCommands, run }))
  await Promise.all(Array.from({ length: 32 }, () => rules.applyFor('a', { ...CURRENT, lines: ['good'] })))
  assert.ok(sizes.length <= 2, String(sizes))
  const ends = await Promise.allSettled(
    ['good', 'bad', 'good'].map((line) => rules.applyFor('a', { ...CURRENT, lines: [line] })),
  )
  assert.deepEqual(
    ends.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  )
})

test('a refused change does not fail the others of its batch', async (t) => {
  if (process.getuid?.() !== 0) {
    t.skip('network namespaces need root')
    return
  }
  const names = networkNames('rules', localHostCommands)
  await runCommand('ip', ['netns', 'add', names.routerNamespace], LIMIT)
  t.after(() => runCommand('ip', ['netns', 'delete', names.routerNamespace], LIMIT))
  const rules = makeRouterRules(names)
  await rules.apply(['add table inet t'])
  const changes = Array.from({ length: 9 }, (_, n) => [
    `add chain inet t c${String(n)}`,
    n % 4 === 2 ? `add rule inet t missing${String(n)} drop` : `add rule inet t c${String(n)} drop`,
  ])
  const ends = await Promise.allSettled(changes.map((lines) => rules.apply(lines)))
  assert.deepEqual(
    ends.flatMap(({ status }, n) => (status === 'rejected' ? [n] : [])),
    [2, 6],
  )
  const { stdout } = await runCommand(
    'nsenter',
    [`--net=/run/netns/${names.routerNamespace}`, 'nft', 'list', 'ruleset'],
    LIMIT,
  )
  assert.deepEqual(
    [...stdout.matchAll(/chain c(\d)/g)].map(([, n]) => Number(n)),
    [0, 1, 3, 4, 5, 7, 8],
  )
})
