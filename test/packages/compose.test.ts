import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { makeProgram } from '../../src/cli/program.ts'
import { settingRows } from '../../src/config.ts'
import { assertNone, ROOT } from '../support/documents.ts'

const TEXT = readFileSync(join(ROOT, 'packaging/container/compose.yaml'), 'utf8')

test('the compose file starts commands and names settings that exist', async () => {
  const commands = (await makeProgram([])).commands.map((command) => command.name())
  const started = [...TEXT.matchAll(/^ {4}command: \[(\w+)\]$/gm)].map(([, name]) => name ?? '')
  assert.deepEqual(started, ['serve', 'worker'])
  assertNone(
    started.filter((name) => !commands.includes(name)),
    'no such command',
  )
  const known = new Set(settingRows().map(([variable]) => variable))
  const named = [...TEXT.matchAll(/^ {6}((?:SANDYARD|DATABASE)_\w+):/gm)].map(([, variable]) => variable ?? '')
  assert.ok(named.length > 0)
  assertNone(
    named.filter((variable) => !known.has(variable)),
    'no such setting',
  )
})

test('in the compose file the server has no privileges, and only the worker is privileged', () => {
  const services = [...TEXT.matchAll(/^ {2}(database|server|worker):\n((?: {4}.*\n|\n)+)/gm)]
  const bodies = new Map(services.map(([, name, body]) => [name, body ?? '']))
  const server = bodies.get('server') ?? assert.fail('no server')
  for (const line of ['cap_drop: [ALL]', 'user: 65532:65532', 'read_only: true', 'security_opt: [no-new-privileges]'])
    assert.ok(server.includes(line), line)
  const privileged = [...bodies].filter(([, body]) => body.includes('privileged: true')).map(([name]) => name)
  assert.deepEqual(privileged, ['worker'])
})
