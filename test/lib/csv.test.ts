import assert from 'node:assert/strict'
import { test } from 'node:test'
import { csvLine } from '../../src/lib/csv.ts'

test('a cell with a comma, a quote or a line break is quoted (RFC 4180), and others are not', () => {
  assert.equal(csvLine(['plain', 'a,b', 'say "hi"', 'two\nlines', '']), 'plain,"a,b","say ""hi""","two\nlines",\r\n')
})

test('formulas become text, and numbers stay numbers', () => {
  assert.equal(csvLine(['=1+1', '+x', '-x', '@x', '-1.5', '7']), "'=1+1,'+x,'-x,'@x,-1.5,7\r\n")
  assert.equal(csvLine(['=HYPERLINK("x")']), `"'=HYPERLINK(""x"")"\r\n`)
})
