import { join } from 'node:path'

/** What `npm test` has built, as the start of a clone builds it. Absent if it could not be built. */
const BUILT = process.env['SANDYARD_TEST_PROGRAM']

/** The first file of the program that users start, or that of its sources. */
export const PROGRAM = BUILT ?? join(import.meta.dirname, '../../src/cli.ts')

/** The environment in which the program runs: the built one has no cache of compiled code. */
export const PROGRAM_ENV: Readonly<Record<string, string>> = BUILT === undefined ? {} : { NODE_COMPILE_CACHE: '' }
