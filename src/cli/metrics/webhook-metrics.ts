import { Counter, Histogram, type Registry } from 'prom-client'
import type { DeliveryObserver } from '../../loops/webhooks/deliver-webhooks.ts'

const RESULTS = ['delivered', 'retried', 'failed'] as const

/** Adds the metrics of webhooks. The process that delivers counts. */
export function makeWebhookMetrics(register: Registry): DeliveryObserver {
  const registers = [register]
  const attempts = new Counter({
    name: 'sandyard_webhook_attempts_total',
    help: 'Attempts to deliver an event to a webhook, by result: delivered, to be retried, or failed for good.',
    labelNames: ['result'],
    registers,
  })
  const delays = new Histogram({
    name: 'sandyard_webhook_delivery_delay_seconds',
    help: 'From an event to its delivery to a webhook.',
    buckets: [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86_400],
    registers,
  })
  // Rates miss the first attempt of a series that begins with it.
  for (const result of RESULTS) attempts.inc({ result }, 0)
  return {
    onAttempt({ result, delayMs }) {
      attempts.inc({ result })
      if (delayMs !== null) delays.observe(delayMs / 1000)
    },
  }
}
