import assert from 'node:assert/strict'
import { test } from 'node:test'
import { formatDuration, formatMib } from '../../src/cli/commands/format.ts'
import { formatSections } from '../../src/cli/commands/view/sections.ts'
import { makeTableFormat } from '../../src/cli/commands/table.ts'
import { nearestNames } from '../../src/domain/edit-distance.ts'
import { displayWidth, escapeControls, truncate } from '../../src/lib/terminal-text.ts'

const ID = '0199b1f2-0000-7000-8000-000000000001'
const ROWS = [
  ['ID', 'NAME', 'STATUS'],
  [ID, 'a name that is much longer than the others', 'running'],
  [ID, null, 'stopped'],
] as const

test('at a terminal columns are aligned, and the widest column is shortened until the line fits; ids never are', () => {
  const fits = makeTableFormat(ROWS, 200)(ROWS).split('\n')
  assert.equal(fits[2], `${ID}  -${' '.repeat(43)}stopped`)
  const shortened = makeTableFormat(ROWS, 66)(ROWS)
  assert.ok(
    shortened.split('\n').every((line) => displayWidth(line) <= 66),
    shortened,
  )
  assert.match(shortened, new RegExp(`${ID} {2}a name that is muc… {2}running`))
  assert.match(makeTableFormat(ROWS, 10)(ROWS), new RegExp(ID))
  const wide = [Array.from({ length: 9 }, () => 'HEADING'), Array.from({ length: 9 }, () => 'a text of twenty-four ch')]
  assert.ok(
    makeTableFormat(
      wide,
      80,
    )(wide)
      .split('\n')
      .every((line) => displayWidth(line) <= 80),
  )
})

test('without a terminal nothing is shortened, and columns are separated by tabs', () => {
  assert.equal(
    makeTableFormat(ROWS, null)(ROWS),
    `ID\tNAME\tSTATUS\n${ID}\ta name that is much longer than the others\trunning\n${ID}\t-\tstopped\n`,
  )
})

test('text of tenants reaches no terminal with control characters or changes of direction', () => {
  assert.equal(escapeControls('a\x1b[2Jb\r\n\x9b\u202ec\u2028'), 'a\\x1b[2Jb\\x0d\\x0a\\x9b\\u{202e}c\\u{2028}')
  assert.equal(makeTableFormat([['a\tb\n']], null)([['a\tb\n']]), 'a\\x09b\\x0a\n')
  assert.equal(
    formatSections([
      {
        title: 'LABELS',
        facts: [
          ['k\x07', 'v\x1b'],
          ['none', null],
        ],
      },
    ]),
    'LABELS\n  k\\x07  v\\x1b\n',
  )
  assert.equal(formatSections([{ title: 'EMPTY', facts: [] }]), '')
})

test('wide characters count as two columns', () => {
  assert.equal(displayWidth('日本e\u0301'), 5)
  assert.equal(truncate('日本語', 4), '日…')
})

test('durations and sizes are shown in their two largest units', () => {
  assert.deepEqual([0, 59_999, 3_661_000, 90_000_000].map(formatDuration), ['0s', '59s', '1h 1m', '1d 1h'])
  assert.deepEqual([512, 2048, 1536].map(formatMib), ['512 MiB', '2 GiB', '1.5 GiB'])
})

test('similar names are those that differ in two fifths of the letters, or contain the text', () => {
  assert.deepEqual(nearestNames('bacth', ['batch', 'web', 'batch'], 3), ['batch'])
  assert.deepEqual(nearestNames('web', ['web-1', 'xyz', 'wed'], 3), ['web-1', 'wed'])
})
