import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { settingRows } from '../src/config.ts'
import { abilitiesTable } from '../src/domain/required-abilities.ts'
import { OCI_ABILITIES } from '../src/worker/drivers/oci/probe.ts'

const README = join(import.meta.dirname, '..', 'README.md')

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
  ['field', 'here', 'what it asks'],
  ['---', '---', '---'],
  ...abilitiesTable.map(({ ability, fields, meaning }) => [
    fields,
    ability !== null && OCI_ABILITIES.includes(ability) ? 'enforced' : '**refused**',
    meaning,
  ]),
])

function check(section: string, rendered: string): void {
  const [begin, end] = [`<!-- ${section}:begin -->`, `<!-- ${section}:end -->`]
  const text = readFileSync(README, 'utf8')
  const from = text.indexOf(begin) + begin.length
  const to = text.indexOf(end)
  assert.ok(from >= begin.length && to >= from, `README.md has no section ${section}`)
  if (process.env['UPDATE_DOCS'] === '1') {
    writeFileSync(README, `${text.slice(0, from)}\n${rendered}\n${text.slice(to)}`)
    return
  }
  const hint = 'run UPDATE_DOCS=1 npm test -- test/docs.test.ts'
  assert.equal(
    text.slice(from, to).trim(),
    rendered,
    `the README's table of ${section} is not what the program has: ${hint}`,
  )
}

test('the README lists every setting as the program reads it', () => {
  check('settings', settings)
})

test('the README says of every ability whether it is enforced or refused', () => {
  check('abilities', abilities)
})
