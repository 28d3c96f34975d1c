/** Summaries of samples. All of them need at least one sample. */

/**
 * The quantile by nearest rank: the smallest sample such that at least a share `p` (0 to 1) of the samples is not
 * larger.
 */
export function quantile(samples: readonly number[], p: number): number {
  const sorted = samples.toSorted((one, other) => one - other)
  const value = sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)]
  if (value === undefined) throw new Error('there is no quantile of no samples')
  return value
}

export function median(samples: readonly number[]): number {
  return quantile(samples, 0.5)
}

/** Formats milliseconds as `min / median / p95`. */
export function formatSpreadMs(samples: readonly number[]): string {
  return [Math.min(...samples), median(samples), quantile(samples, 0.95)].map(formatMs).join(' / ') + ' ms'
}

/** Formats a number as `1.23` below 10, `12.3` below 100 and `123` from there on. */
export function formatNumber(value: number): string {
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)
}

export function formatMs(value: number): string {
  return formatNumber(value)
}

export function formatRate(value: number): string {
  return `${Math.round(value).toLocaleString('en-US')} /s`
}
