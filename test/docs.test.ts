import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { settingRows } from '../src/config.ts'
import { EVENT_TYPES } from '../src/domain/events/event-types.ts'
import { ABILITIES_TABLE } from '../src/domain/spec/required-abilities.ts'
import { MICROSANDBOX_ABILITIES } from '../src/worker/drivers/microsandbox/make-vm-config.ts'
import { OCI_ABILITIES } from '../src/worker/drivers/oci/run/probe.ts'

const README = join(import.meta.dirname, '..', 'README.md')
const EVENTS = join(import.meta.dirname, '..', 'docs', 'events.md')

function table(rows: readonly (readonly string[])[]): string {
  return rows.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

const settings = table([
  ['variable', 'flag', 'default', 'unit', 'meaning'],
  ['---', '---', '---', '---', '---'],
  ...settingRows().map(([variable, flag, fallback, unit, meaning]) => [
    `\`${variable}\``,
    flag === '' ? '' : `\`${flag}\``,
    fallback === '' ? '' : `\`${fallback}\``,
    unit,
    meaning,
  ]),
])

const abilities = table([
  ['field', '`oci`', '`microsandbox`', 'what it asks'],
  ['---', '---', '---', '---'],
  ...ABILITIES_TABLE.map(({ ability, fields, meaning }) => [
    fields,
    ...[OCI_ABILITIES, MICROSANDBOX_ABILITIES].map((offered) =>
      ability !== null && offered.includes(ability) ? 'enforced' : '**refused**',
    ),
    meaning,
  ]),
])

const events = table([
  ['type', 'category', 'what happened', 'payload'],
  ['---', '---', '---', '---'],
  ...Object.entries(EVENT_TYPES).map(([type, { category, what, facts }]) => [
    `\`${type}\``,
    category,
    what,
    Object.entries(facts)
      .map(([name, kind]) => `\`${name}\` ${kind.replace(/\?$/, (mark) => (mark === '' ? '' : ', may be absent'))}`)
      .join('; '),
  ]),
])

function check(section: string, rendered: string, file = README): void {
  const [begin, end] = [`<!-- ${section}:begin -->`, `<!-- ${section}:end -->`]
  const text = readFileSync(file, 'utf8')
  const from = text.indexOf(begin) + begin.length
  const to = text.indexOf(end)
  assert.ok(from >= begin.length && to >= from, `${file} has no section ${section}`)
  if (process.env['UPDATE_DOCS'] === '1') {
    writeFileSync(file, `${text.slice(0, from)}\n${rendered}\n${text.slice(to)}`)
    return
  }
  const hint = 'run UPDATE_DOCS=1 npm test -- test/docs.test.ts'
  assert.equal(
    text.slice(from, to).trim(),
    rendered,
    `${file}: the table of ${section} is not what the program has: ${hint}`,
  )
}

test('the README lists every setting as the program reads it', () => {
  check('settings', settings)
})

test('the README says of every ability which driver enforces it and which refuses it', () => {
  check('abilities', abilities)
})

test('docs/events.md lists every type of audit event with the facts of its payload', () => {
  check('events', events, EVENTS)
})
