import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { ABILITIES } from '../../src/domain/abilities.ts'
import { eitherCasing, pascalCase, snakeCase } from '../../src/domain/casing.ts'
import { decodeCursor, encodeCursor } from '../../src/domain/requests/cursor.ts'
import { normalizeGuestPath } from '../../src/domain/spec/guest-path.ts'
import { parseLabelFilter, findLabelRefusal } from '../../src/domain/sandboxes/labels.ts'
import { ISOLATION_LEVELS } from '../../src/domain/isolation.ts'
import { generateSlug, isName, isSlug } from '../../src/domain/names.ts'
import { Problem } from '../../src/domain/problem.ts'
import { ABILITIES_TABLE } from '../../src/domain/spec/required-abilities.ts'
import { renderSandbox, type Sandbox } from '../../src/domain/sandboxes/sandbox.ts'
import { RLIMIT_RESOURCES } from '../../src/domain/spec/spec.ts'
import { asId, type RunId } from '../../src/domain/ids.ts'
import { SANDBOX_STATUSES, STATUS_REASONS } from '../../src/domain/sandboxes/lifecycle.ts'

test('every generated slug is valid, and other random bytes give another slug', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(), { minLength: 3, maxLength: 3 }), (numbers) => {
      const queue = [...numbers]
      assert.ok(isSlug(generateSlug((below) => (queue.shift() ?? 0) % below)))
    }),
  )
  assert.notEqual(
    generateSlug(() => 0),
    generateSlug((below) => below - 1),
  )
})

test('a name is 1 to 128 bytes of UTF-8 without control characters', () => {
  for (const name of ['a', 'a b/c', '日本', 'ü'.repeat(64), '..', "'; DROP TABLE"]) assert.ok(isName(name), name)
  for (const name of ['', 'a\0', 'a\nb', '\u007f', '\u0085', 'ü'.repeat(65), '\ud800'])
    assert.ok(!isName(name), JSON.stringify(name))
})

test('a slug has 3 to 63 lowercase letters, digits and single hyphens inside', () => {
  for (const slug of ['abc', 'a-b', '123', 'a'.repeat(63)]) assert.ok(isSlug(slug), slug)
  for (const slug of ['ab', 'a--b', '-ab', 'ab-', 'Abc', 'a_b', 'a'.repeat(64), 'abc\n', 'äbc'])
    assert.ok(!isSlug(slug), slug)
})

test('labels with a reserved prefix can’t be set, but can be searched for', () => {
  for (const key of ['sandbox.a', 'microsandbox.b', 'service.c']) {
    assert.equal(findLabelRefusal({ [key]: '1' }, 'labels')?.code, 'invalid_request')
    assert.deepEqual(parseLabelFilter(JSON.stringify({ [key]: '1' })), { labels: { [key]: '1' } })
  }
  assert.equal(findLabelRefusal({ team: 'ml', empty: '' }, 'labels'), null)
  for (const text of ['', 'x', '[]', 'null', '{"a":1}', '{"a":"\\u0000"}'])
    assert.ok('refusal' in parseLabelFilter(text), text)
})

test('a label that begins with sandyard. and that the service doesn’t know is refused, with those that it knows', () => {
  for (const key of ['sandyard.isolaton', 'sandyard.restarts', 'sandyard.', 'sandyard.toString']) {
    const refusal = findLabelRefusal({ team: 'ml', [key]: 'microvm' }, 'labels')
    assert.equal(refusal?.field, `labels.${key}`)
    assert.match(refusal.accepted, /sandyard\.isolation, sandyard\.restart, sandyard\.snapshot/)
  }
  assert.equal(findLabelRefusal({ 'sandyard.isolation': 'microvm', sandyard: 'x', 'sandyards.a': 'x' }, 'labels'), null)
})

test('a cursor decodes in the list that encoded it, and any other text is refused as a problem', () => {
  fc.assert(
    fc.property(fc.uuid(), (id) => {
      assert.equal(decodeCursor('sandboxes', encodeCursor('sandboxes', id)), id)
      assert.throws(() => decodeCursor('events', encodeCursor('sandboxes', id)), Problem)
    }),
  )
  fc.assert(fc.property(fc.string(), (text) => assert.throws(() => decodeCursor('events', text), Problem)))
  const id = '01a20ed9-a840-71f4-80fd-2c5c9cc04c65'
  const isRead = (after: string): boolean => {
    const cursor = encodeCursor('usage_by_sandbox', after)
    try {
      return decodeCursor('usage_by_sandbox', cursor) === after
    } catch {
      return false
    }
  }
  assert.ok(isRead(`2028-02-29 ${id}`))
  for (const after of [
    id,
    `2028-02-30 ${id}`,
    `2028-2-29 ${id}`,
    `2028-02-29 ${id} `,
    '2028-02-29',
    `2028-02-29T00:00:00Z ${id}`,
  ])
    assert.ok(!isRead(after), after)
})

test('a guest path never leaves the root, and normalizing it again changes nothing', () => {
  const steps = fc.array(fc.constantFrom('a', '..', '.', '', 'b c'), { maxLength: 8 })
  fc.assert(
    fc.property(steps, (parts) => {
      const path = normalizeGuestPath(`/${parts.join('/')}`)
      if (path === null) return
      assert.ok(path.startsWith('/') && !path.split('/').includes('..'))
      assert.equal(normalizeGuestPath(path), path)
    }),
  )
  for (const path of ['a', '', '/..', '/a/../..', '/a\0', `/${'a'.repeat(4095)}`])
    assert.equal(normalizeGuestPath(path), null, path)
})

test('every value of a closed set may be spelled in PascalCase or snake_case', () => {
  assert.equal(pascalCase('if_missing'), 'IfMissing')
  for (const spelt of eitherCasing(RLIMIT_RESOURCES))
    assert.equal(snakeCase(RLIMIT_RESOURCES, spelt), spelt.toLowerCase())
})

test('the table of abilities has a row for every ability', () => {
  assert.deepEqual(
    ABILITIES_TABLE.map(({ ability }) => ability),
    [...ABILITIES],
  )
  for (const { fields, meaning } of ABILITIES_TABLE) assert.ok(fields !== '' && meaning !== '')
})

test('a rendered sandbox parses as JSON to the same sandbox, whatever characters its texts contain', () => {
  const date = fc.date({ noInvalidDate: true, min: new Date(0), max: new Date(4e12) })
  const sandboxes: fc.Arbitrary<Omit<Sandbox, 'id' | 'org_id'>> = fc.record({
    name: fc.string({ unit: 'binary' }),
    slug: fc.constant('a-b-c'),
    status: fc.constantFrom(...SANDBOX_STATUSES),
    ephemeral: fc.boolean(),
    created_at: date,
    last_failure_message: fc.option(fc.string({ unit: 'binary' })),
    started_at: fc.option(date),
    status_reason: fc.option(fc.constantFrom(...STATUS_REASONS)),
    stopped_at: fc.option(date),
    run_id: fc.option(fc.constant(asId<RunId>('r'))),
    isolation: fc.option(fc.constantFrom(...ISOLATION_LEVELS)),
    spec_json: fc.constant('{"image":"a"}'),
  })
  fc.assert(
    fc.property(sandboxes, (fields) => {
      const sandbox: Sandbox = { ...fields, id: asId('i'), org_id: asId('o') }
      const { spec_json, ...rest } = sandbox
      assert.deepEqual(JSON.parse(renderSandbox(sandbox)), {
        ...JSON.parse(JSON.stringify(rest)),
        spec: JSON.parse(spec_json),
      })
    }),
  )
})
