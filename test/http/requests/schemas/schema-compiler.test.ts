import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { OPERATIONS } from '../../../../src/contract/operations.ts'
import { LinkInput } from '../../../../src/contract/sign-in/sign-in.ts'
import { JoinInput } from '../../../../src/contract/workers/join-input.ts'
import { SyncInput } from '../../../../src/contract/workers/sync-input.ts'
import { makeSchemaCompiler } from '../../../../src/http/requests/schemas/schema-compiler.ts'

test('each schema of a request is valid, and compiles', () => {
  const ajv = new Ajv2020()
  const compile = makeSchemaCompiler({ acceptsEmptyMembers: true })
  const parts = Object.values(OPERATIONS).flatMap(({ params, query, body }) => [params, query, body])
  for (const schema of [...parts, LinkInput, JoinInput, SyncInput]) {
    assert.equal(ajv.validateSchema(schema), true, ajv.errorsText())
    const parse = compile(schema, 'body')
    assert.doesNotThrow(() => {
      try {
        parse({})
      } catch (error) {
        if (!(error instanceof Error) || !error.message.startsWith('invalid request: ')) throw error
      }
    })
  }
  assert.equal(ajv.validateSchema({ type: 'text' }), false) // what the loop would find
})
