/**
 * What the limits of the tests' waits are multiplied by, 1 unless SANDYARD_TEST_PACE says more. The guest of
 * `npm run test:microvm` emulates its processor and takes ten times as long.
 */
export const TIMEOUT_FACTOR = Math.max(1, Number(process.env['SANDYARD_TEST_PACE'] ?? 1))
