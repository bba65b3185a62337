"""Engine arms over an executor that computes nothing and checks every KV slot."""

from octavo.config import CacheSection, SchedulerSection
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.engine_arm import EngineArm
from octavo.scheduler.scheduler import Scheduler
from octavo.testing.fake_executor import FakeExecutor
from octavo.testing.invariants import check_kv_cache

VOCAB = 50


def simulated_arm(kv: KVCacheManager, *, max_model_len: int, max_num_batched_tokens: int = 64,
                  max_num_seqs: int = 32) -> EngineArm:
    """What must hold of the blocks is checked after every step."""
    scheduler = Scheduler(SchedulerSection(
        max_model_len=max_model_len, max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs), kv)
    executor = FakeExecutor(num_blocks=kv.num_blocks, block_size=kv.block_size, vocab_size=VOCAB)
    return EngineArm("simulated", EngineCore(scheduler, executor),
                     after_step=lambda: check_kv_cache(kv))


def section(num_blocks: int, block_size: int = 4, *, caching: bool = False) -> CacheSection:
    """A small cache."""
    return CacheSection(num_blocks=num_blocks, block_size=block_size,
                        enable_prefix_caching=caching)
