import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { systemRandom } from '../../../src/lib/random.ts'
import { isUuid } from '../../../src/lib/uuid.ts'
import { beginIncarnation } from '../../../src/worker/agent/incarnation.ts'
import { makeTestClock } from '../../support/test-clock.ts'

const folder = mkdtempSync(join(tmpdir(), 'sandyard-life-'))
after(() => {
  rmSync(folder, { recursive: true })
})

test('each incarnation has a greater UUID than the one before, even in the same millisecond and after the clock was set back', async () => {
  const path = join(folder, 'life.json')
  const lives: string[] = []
  for (const at of ['2026-11-22T12:00:00Z', '2026-11-22T12:00:00Z', '2026-11-22T11:00:00Z', '2026-11-22T13:00:00Z'])
    lives.push(await beginIncarnation({ clock: makeTestClock(new Date(at)), random: systemRandom }, path))
  assert.ok(lives.every(isUuid))
  assert.deepEqual(lives, [...new Set(lives)].sort())
})

test('a truncated incarnation file is replaced', async () => {
  const path = join(folder, 'cut.json')
  writeFileSync(path, '{"life":')
  assert.ok(isUuid(await beginIncarnation({ clock: makeTestClock(), random: systemRandom }, path)))
})
